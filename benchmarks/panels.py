"""The figure of growth: one panel per stage, all with the same logarithmic axes, so that slopes are comparable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from benchmarks import slopes
from benchmarks.page import STYLE

WIDTH, COLUMNS, PANEL, TOP, GAP = 480, 2, 158, 64, 12  # in pixels
LEFT, HEAD, FOOT = 42, 36, 22  # of a panel: room for words
MOST, LEAST = 256.0, 0.5  # times, at the ends of the upright axis
LINES = """
.time { stroke: #1f5fbf; fill: none; stroke-width: 2.5 } .memory { stroke: #b45309; fill: none; stroke-width: 2.5;
stroke-dasharray: 6 3 } .guide { stroke: #8b98a9; fill: none; stroke-dasharray: 2 3 } .small { font-size: 11px }
.time-dot { fill: #1f5fbf } .memory-dot { fill: #b45309 } .on { fill: #fff }
@media (prefers-color-scheme: dark) { .time { stroke: #6ea8fe } .memory { stroke: #f0a35e }
.time-dot { fill: #6ea8fe } .memory-dot { fill: #f0a35e } .on { fill: #10151b } }
"""


def picture(result: Mapping[str, Any]) -> str:
    """Return the SVG."""
    names = list(result["stages"])
    height = TOP + PANEL * math.ceil(len(names) / COLUMNS) + GAP
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    panels = [
        line
        for number, name in enumerate(names)
        for line in _panel(result, name, number % COLUMNS * WIDTH // COLUMNS, TOP + number // COLUMNS * PANEL)
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        "<title>How time and memory grow with the collection, by stage</title>", f"<style>{STYLE}{LINES}</style>",
        f'<text class="ink head" x="{GAP}" y="20">Growth with the collection, by stage</text>',
        f'<path class="time" d="M{GAP} 34h22"/><text class="soft small" x="{GAP + 28}" y="38">CPU seconds</text>',
        '<path class="memory" d="M116 34h22"/><text class="soft small" x="144" y="38">memory above start-up</text>',
        '<path class="guide" d="M282 34h22"/><text class="soft small" x="310" y="38">n, and n squared</text>',
        f'<text class="soft small" x="{GAP}" y="55">Times the value at the least size, by documents; '
        "both axes logarithmic</text>",
        *panels, "</svg>", "",
    ])  # fmt: skip


def _panel(result: Mapping[str, Any], name: str, across: int, top: int) -> Iterator[str]:
    _, *rows = result["stages"][name]
    sizes = [row["documents"] for row in rows]
    box = _Box(across + LEFT, top + HEAD, WIDTH // COLUMNS - LEFT - GAP, PANEL - HEAD - FOOT, sizes[0], sizes[-1])
    growth = slopes.slope(slopes.seconds(result, name))
    words = f"time n^{growth.exponent:.2f}" if growth else "time: too short"
    words += f", memory {rows[0]['peak_mib']:.0f} to {rows[-1]['peak_mib']:.0f} MiB"
    yield f'<text class="ink head" x="{across + GAP}" y="{top + 14}">{escape(name)}</text>'
    yield f'<text class="soft small" x="{across + GAP}" y="{top + 29}">{words}</text>'
    for times in (1, 16, 256):
        y = box.up(times)
        yield f'<path class="rule" d="M{box.left} {y:.1f}h{box.width}"/>'
        yield f'<text class="soft small" x="{box.left - 4}" y="{y + 4:.1f}" text-anchor="end">{times}×</text>'
    for size, anchor in zip(sizes, ("start", "middle", "end"), strict=True):
        x = box.across(size)
        yield (
            f'<text class="soft small" x="{x:.1f}" y="{box.top + box.height + 14}" text-anchor="{anchor}">'
            f"{size // 1000},000</text>"
        )
    for power in (1, 2):
        yield f'<path class="guide" d="{box.line([(size, (size / sizes[0]) ** power) for size in sizes])}"/>'
    yield from box.curve("memory", slopes.memory(result, name), shortest=1.0)
    if growth:
        yield from box.curve("time", slopes.seconds(result, name), shortest=slopes.SHORTEST)


class _Box:
    """The coordinates of values in a panel."""

    def __init__(self, x: int, top: int, width: int, height: int, least: int, most: int) -> None:
        self.left, self.top, self.width, self.height, self.least, self.most = x, top, width, height, least, most

    def across(self, size: float) -> float:
        return self.left + self.width * math.log(size / self.least) / math.log(self.most / self.least)

    def up(self, times: float) -> float:
        within = min(MOST, max(LEAST, times))
        return self.top + self.height * (1 - math.log(within / LEAST) / math.log(MOST / LEAST))

    def line(self, points: list[tuple[int, float]]) -> str:
        return "M" + " L".join(f"{self.across(size):.1f} {self.up(times):.1f}" for size, times in points)

    def curve(self, kind: str, points: slopes.Points, shortest: float) -> Iterator[str]:
        """Yield a line through the large enough values, scaled to n at the first of them."""
        shown = [(size, value) for size, value in points if value >= shortest]
        if len(shown) < 2:
            return
        scale = shown[0][1] / (shown[0][0] / self.least)
        placed = [(size, value / scale) for size, value in shown]
        yield f'<path class="{kind}" d="{self.line(placed)}"/>'
        for size, times in placed:
            yield f'<circle class="{kind}-dot" cx="{self.across(size):.1f}" cy="{self.up(times):.1f}" r="3"/>'
