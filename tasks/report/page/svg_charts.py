"""Figures of a study as SVG files: a forest plot of differences, and learning curves.

They follow the reader's light or dark colours, contain no script and no font, and are narrow enough for a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.report.page.chart_geometry import Curve, axis, polyline, position
from tasks.report.page.statistics import signed
from tasks.report.page.templates import template

WIDTH, LINE, HEAD, FOOT = 480, 38, 34, 60
LEFT, RIGHT = 12, 12
FROM, PANEL_WIDTH, PANEL_HEIGHT, PANEL_HEAD, PANEL_FOOT, LEGEND = 52, 414, 110, 30, 22, 15
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


def curves(title: str, panels: Mapping[str, Mapping[str, Curve]], units: Mapping[str, str] | None = None) -> str:
    """Return a panel for each name with its curves; the axis of values begins at the smallest value.

    Points with an interval have a bar. `units` has the unit of a panel's other axis; without one these are steps.
    """
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    colours = {name: number % COLOURS for number, name in enumerate(names)}
    drawn, top = [], 30 + LEGEND * -(-len(names) // 2)
    for panel, lines in panels.items():
        points = [point for line in lines.values() for point in line]
        across = axis(0.0, max(step for step, *_ in points))
        values = [value for _, *of_point in points for value in of_point]
        up = axis(min(values), max(values))
        head = top + PANEL_HEAD
        area = (FROM, head, PANEL_WIDTH, PANEL_HEIGHT)
        drawn.append({
            "name": panel, "y": top, "area": head, "bottom": head + PANEL_HEIGHT,
            "low": up["ticks"][0]["words"], "high": up["ticks"][-1]["words"],
            "last": f"{across['ticks'][-1]['words']} {(units or {}).get(panel, 'steps')}",
            "lines": [
                {"colour": colours[name], "points": polyline(line, across, up, area),
                 "bars": [polyline([(x, low), (x, high)], across, up, area) for x, _, *ends in line if ends
                          for low, high in (ends,)]} for name, line in lines.items()
            ],
        })  # fmt: skip
        top = head + PANEL_HEIGHT + PANEL_FOOT
    legend = [{"name": name, "colour": colours[name], "x": LEFT + (WIDTH // 2 - LEFT) * (number % 2),
               "y": 40 + LEGEND * (number // 2)} for number, name in enumerate(names)]  # fmt: skip
    return template("curves.svg.j2").render(
        title=title, panels=drawn, legend=legend, width=WIDTH, height=top, left=FROM, right=FROM + PANEL_WIDTH,
    )  # fmt: skip
