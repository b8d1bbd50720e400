"""Figures of a study as SVG files: a forest plot of differences, and learning curves.

They follow the reader's light or dark colours, contain no script and no font, and are narrow enough for a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.report.page.chart_geometry import Curve, axis, polyline, position
from tasks.report.page.statistics import signed
from tasks.report.page.templates import template

WIDTH, LINE, HEAD, FOOT = 480, 38, 34, 60
LEFT, RIGHT = 12, 12
FROM, PANEL_WIDTH, PANEL_HEIGHT, PANEL_HEAD, PANEL_FOOT, LEGEND = 52, 414, 110, 30, 22, 15
ROW = PANEL_HEAD + PANEL_HEIGHT + PANEL_FOOT
COLOURS = 8  # of lines
FARTHEST = 0.15  # above all differences of papers; a larger difference is drawn at the edge, with its value


@dataclass(frozen=True)
class Difference:
    """One line of a forest plot."""

    words: str
    value: float
    low: float
    high: float
    printed: float | None
    """The difference reported in the paper, if there is one."""
    verdict: str


def forest(title: str, differences: Sequence[Difference]) -> str:
    """Return a forest plot: each difference with its interval, and the difference reported in the paper."""
    ends = [end for line in differences for end in (line.low, line.high, line.printed or 0.0)]
    on = axis(max(-FARTHEST, min(0.0, *ends)), min(FARTHEST, max(0.0, *ends)))

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, position(value, on))), 1)

    lines = [
        {
            "words": line.words if on["low"] <= line.value <= on["high"] else f"{line.words}, {signed(line.value)}",
            "kind": line.verdict.replace(" ", "-"), "verdict": line.verdict, "y": HEAD + LINE * number,
            "value": across(line.value), "low": across(line.low), "high": across(line.high),
            "printed": None if line.printed is None else across(line.printed),
        }
        for number, line in enumerate(differences)
    ]  # fmt: skip
    ticks = [{"x": across(on["low"] + (on["high"] - on["low"]) * tick["place"]), "words": tick["words"]}
             for tick in on["ticks"]]  # fmt: skip
    return template("forest.svg.j2").render(
        title=title, lines=lines, ticks=ticks, zero=across(0.0), width=WIDTH, top=HEAD - 8,
        bottom=HEAD + LINE * len(lines), height=HEAD + LINE * len(lines) + FOOT,
    )  # fmt: skip


def curves(title: str, panels: Mapping[str, Mapping[str, Curve]], unit: str = " steps", columns: int = 1) -> str:
    """Return a panel for each name with its curves, in rows of `columns`; values begin near the smallest.

    Points with an interval have a bar and a mark. `unit` follows the last number of the other axis.
    """
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    colours = {name: number % COLOURS for number, name in enumerate(names)}
    in_a_row = 2 * columns
    first = 30 + LEGEND * -(-len(names) // in_a_row)
    drawn = [
        _panel(name, lines, unit, colours,
               (FROM + WIDTH * (number % columns), first + PANEL_HEAD + ROW * (number // columns)))
        for number, (name, lines) in enumerate(panels.items())
    ]  # fmt: skip
    legend = [{"name": name, "colour": colours[name], "x": LEFT + (WIDTH // 2 - LEFT) * (number % in_a_row),
               "y": 40 + LEGEND * (number // in_a_row)} for number, name in enumerate(names)]  # fmt: skip
    return template("curves.svg.j2").render(
        title=title, panels=drawn, legend=legend, width=WIDTH * columns, height=first + ROW * -(-len(panels) // columns)
    )


def _panel(
    name: str, lines: Mapping[str, Curve], unit: str, colours: Mapping[str, int], corner: tuple[int, int]
) -> dict[str, Any]:
    """Return what the template draws of a panel, whose area begins at this corner."""
    left, top = corner
    points = [point for line in lines.values() for point in line]
    across = axis(0.0, max(step for step, *_ in points))
    values = [value for _, *of_point in points for value in of_point]
    up, area = axis(min(values), max(values)), (left, top, PANEL_WIDTH, PANEL_HEIGHT)
    steps = [{"x": round(left + PANEL_WIDTH * tick["place"], 1), "words": tick["words"]} for tick in across["ticks"]]
    steps[-1]["words"] += unit
    return {
        "name": name, "left": left, "right": left + PANEL_WIDTH, "top": top, "bottom": top + PANEL_HEIGHT,
        "steps": steps,
        "values": [{"y": round(top + PANEL_HEIGHT * (1 - tick["place"]), 1), "words": tick["words"]}
                   for tick in up["ticks"]],
        "lines": [
            {"colour": colours[line], "points": polyline(curve, across, up, area),
             "bars": [polyline([(x, low), (x, high)], across, up, area) for x, _, *ends in curve if ends
                      for low, high in (ends,)],
             "marks": [polyline([point], across, up, area).split(",") for point in curve if len(point) > 2]}
            for line, curve in lines.items()
        ],
    }  # fmt: skip
