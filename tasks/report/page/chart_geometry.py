"""The geometry of the report's charts: axes, polylines, circles on a grid, lengths of bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Curve = Sequence[Sequence[float]]
"""Points of x and y, or of x, y and the ends of an interval of y, in the order of x."""

PLOT_WIDTH, PLOT_HEIGHT = 300, 120
CELL, LARGEST = 34, 15.5  # grid of queries, in pixels: width of a cell, radius of the largest circle
LEFT, TOP, RIGHT, BOTTOM = 62, 12, 14, 46  # margins of the grid

Axis = Mapping[str, Any]
"""`low` and `high`, and ticks with a `place` from 0 to 1 and `words`."""


def axis(low: float, high: float) -> dict[str, Any]:
    """Return an axis between round numbers around the values, with its ticks."""
    step = _step((high - low) or 0.01)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    first, last = (first, last) if last > first else (first, first + 1)
    digits = max(0, -math.floor(math.log10(step)))
    return {
        "low": first * step, "high": last * step,
        "ticks": [{"place": (number - first) / (last - first), "words": f"{number * step:.{digits}f}"}
                  for number in range(first, last + 1)],
    }  # fmt: skip


def _step(width: float) -> float:
    """Return about a fifth of the width: 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(width / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width / 5)


def position(value: float, on: Axis) -> float:
    """Return the position of a value on an axis, from 0 to 1."""
    low, high = float(on["low"]), float(on["high"])
    return min(1.0, max(0.0, (value - low) / (high - low)))


def polyline(points: Curve, across: Axis, up: Axis, area: tuple[float, float, float, float]) -> str:
    """Return the points of an SVG polyline; the area is left, top, width and height."""
    left, top, width, height = area
    return " ".join(
        f"{left + width * position(x, across):.1f},{top + height * (1 - position(y, up)):.1f}" for x, y, *_ in points
    )


def scatter(grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return a circle for each cell of a grid of queries, its area proportional to the number of queries."""
    ticks: Sequence[str] = grid["ticks"]
    size = CELL * len(ticks)
    most = max(cell["queries"] for cell in grid["cells"])
    kinds = {1: "better", 0: "equal", -1: "worse"}
    cells, sums = [], dict.fromkeys(kinds.values(), 0)
    for cell in sorted(grid["cells"], key=lambda cell: -cell["queries"]):
        across, up, queries = cell["baseline"], cell["run"], cell["queries"]
        kind = kinds[(up > across) - (up < across)]
        sums[kind] += queries
        radius = round(max(2.0, LARGEST * math.sqrt(queries / most)), 1)
        cells.append({
            "x": LEFT + CELL * across + CELL // 2, "y": TOP + size - CELL * up - CELL // 2,
            "r": radius, "kind": kind, "queries": queries, "labelled": radius > 3 + 2.9 * len(str(queries)),
            "run": ticks[up], "baseline": ticks[across],
        })  # fmt: skip
    return {
        "run": grid["run"], "baseline": grid["baseline"], "width": LEFT + size + RIGHT, "height": TOP + size + BOTTOM,
        "axis": "rank of the first relevant document" if ticks[0] == "none" else grid["metric"],
        "left": LEFT, "right": LEFT + size, "top": TOP, "bottom": TOP + size, "cells": cells, **sums,
        "ticks": [{"words": words, "place": LEFT + CELL * number + CELL // 2,
                   "up": TOP + size - CELL * number - CELL // 2} for number, words in enumerate(ticks)],
    }  # fmt: skip


def plot(name: str, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Return the curves of one training as SVG polylines, with the ends of both axes."""
    points = [point for curve in curves.values() for point in curve]
    last, highest = max(step for step, _ in points), max(value for _, value in points)
    highest = highest or 1.0
    across, up = {"low": 0, "high": max(last, 1)}, {"low": 0, "high": highest}
    area = (0, 0, PLOT_WIDTH, PLOT_HEIGHT)

    return {
        "name": name, "steps": round(last), "highest": highest, "width": PLOT_WIDTH, "height": PLOT_HEIGHT,
        "lines": [
            {"name": line, "points": polyline(curve, across, up, area), "first": curve[0][1], "last": curve[-1][1]}
            for line, curve in sorted(curves.items())
        ],
    }  # fmt: skip


def dots(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the systems of a paper's table on an axis of its metric, ours with their confidence interval."""
    metric = table["metric"]
    lines = table["lines"]
    ends = [line[side] for line in lines if line["ours"] for side in ("low", "high") if line[side] is not None]
    values = [line["values"][metric] for line in lines] + ends
    on = axis(min(values), max(values))
    points = []
    for line in lines:
        low = position(line["low"], on) if line["ours"] and line["low"] is not None else None
        points.append({
            "name": line["name"], "ours": line["ours"], "value": line["values"][metric],
            "place": position(line["values"][metric], on), "left": low,
            "span": None if low is None else position(line["high"], on) - low,
        })  # fmt: skip
    return {**table, "axis": on, "dots": points}


def sizes(storage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the bytes per passage of each part of the storage, with a width relative to the largest."""
    sums = [sum(stored["parts"].values()) for stored in storage]
    largest = max(sums, default=0) or 1
    return [{**stored, "bytes": total, "width": total / largest} for stored, total in zip(storage, sums, strict=True)]
