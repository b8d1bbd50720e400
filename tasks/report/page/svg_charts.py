"""Pictures of a study as SVG files, which a page shows in light and in dark: a forest plot, and learning curves.

They have no script and no font of their own, and are narrow enough that a phone shows their words as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.report.page.chart_geometry import axis, place
from tasks.report.page.templates import signed, template

WIDTH, LINE, HEAD, FOOT = 480, 38, 34, 60
LEFT, RIGHT = 12, 12
FROM, PANEL_WIDTH, PANEL_HEIGHT, PANEL_HEAD, PANEL_FOOT, LEGEND = 52, 414, 110, 30, 22, 15
COLOURS = 8  # of lines
FARTHEST = 0.15  # more than a paper prints: what lies beyond is drawn at the edge, with its number


@dataclass(frozen=True)
class Difference:
    """A line of a forest plot."""

    words: str
    value: float
    low: float
    high: float
    printed: float | None
    """The paper's difference, where it prints one."""
    verdict: str


def forest(title: str, differences: Sequence[Difference]) -> str:
    """Every difference with its interval, 0 in the middle of things and the papers' differences beside ours."""
    ends = [end for each in differences for end in (each.low, each.high, each.printed or 0.0)]
    on = axis(max(-FARTHEST, min(0.0, *ends)), min(FARTHEST, max(0.0, *ends)))

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, place(value, on))), 1)

    lines = [
        {
            "words": each.words if on["low"] <= each.value <= on["high"] else f"{each.words}, {signed(each.value)}",
            "kind": each.verdict.replace(" ", "-"), "verdict": each.verdict, "y": HEAD + LINE * number,
            "value": across(each.value), "low": across(each.low), "high": across(each.high),
            "printed": None if each.printed is None else across(each.printed),
        }
        for number, each in enumerate(differences)
    ]  # fmt: skip
    ticks = [{"x": across(on["low"] + (on["high"] - on["low"]) * each["place"]), "words": each["words"]}
             for each in on["ticks"]]  # fmt: skip
    return template("forest.svg.j2").render(
        title=title, lines=lines, ticks=ticks, zero=across(0.0), width=WIDTH, top=HEAD - 8,
        bottom=HEAD + LINE * len(lines), height=HEAD + LINE * len(lines) + FOOT,
    )  # fmt: skip


Curve = Sequence[tuple[float, float]]


def curves(title: str, panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """A panel for each name, with lines of steps and values; the axis of values begins at the least of them."""
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    colours = {name: number % COLOURS for number, name in enumerate(names)}
    drawn, top = [], 30 + LEGEND * -(-len(names) // 2)
    for panel, lines in panels.items():
        points = [point for line in lines.values() for point in line]
        across = axis(0.0, max(step for step, _ in points))
        up = axis(min(value for _, value in points), max(value for _, value in points))
        area = top + PANEL_HEAD
        drawn.append({
            "name": panel, "y": top, "area": area, "bottom": area + PANEL_HEIGHT,
            "low": up["ticks"][0]["words"], "high": up["ticks"][-1]["words"], "steps": across["ticks"][-1]["words"],
            "lines": [
                {"colour": colours[name], "points": " ".join(
                    f"{FROM + PANEL_WIDTH * place(step, across):.1f},{area + PANEL_HEIGHT * (1 - place(value, up)):.1f}"
                    for step, value in line)}
                for name, line in lines.items()
            ],
        })  # fmt: skip
        top = area + PANEL_HEIGHT + PANEL_FOOT
    legend = [{"name": name, "colour": colours[name], "x": LEFT + (WIDTH // 2 - LEFT) * (number % 2),
               "y": 40 + LEGEND * (number // 2)} for number, name in enumerate(names)]  # fmt: skip
    return template("curves.svg.j2").render(
        title=title, panels=drawn, legend=legend, width=WIDTH, height=top, left=FROM, right=FROM + PANEL_WIDTH,
    )  # fmt: skip
