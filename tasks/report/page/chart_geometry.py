"""Where things stand in the report's pictures: dots on an axis, circles on a grid, lines of curves, lengths of bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

PLOT_WIDTH, PLOT_HEIGHT = 300, 120
CELL, LARGEST = 34, 15.5  # of the grid of queries, in pixels: a place, and the radius of its largest circle
LEFT, TOP, RIGHT, BOTTOM = 62, 12, 14, 46  # its margins


def axis(low: float, high: float) -> dict[str, Any]:
    """An axis around the values, between round numbers, with its ticks from 0 to 1."""
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
    """A fifth of it or so: 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(width / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width / 5)


def place(value: float, on: Mapping[str, Any]) -> float:
    """Where a value stands on an axis, from 0 to 1."""
    low, high = float(on["low"]), float(on["high"])
    return min(1.0, max(0.0, (value - low) / (high - low)))


def scatter(grid: Mapping[str, Any]) -> dict[str, Any]:
    """Circles for the queries of a grid, whose areas are their numbers; the run's values go up."""
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


def plot(name: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """The lines of one training as SVG points, with the ends of both axes."""
    points = [point for curve in curves.values() for point in curve]
    last, highest = max(step for step, _ in points), max(value for _, value in points)
    highest = highest or 1.0

    def placed(curve: Sequence[Sequence[float]]) -> str:
        return " ".join(
            f"{PLOT_WIDTH * step / max(last, 1):.1f},{PLOT_HEIGHT * (1 - max(value, 0) / highest):.1f}"
            for step, value in curve
        )

    return {
        "name": name, "steps": round(last), "highest": highest, "width": PLOT_WIDTH, "height": PLOT_HEIGHT,
        "lines": [{"name": each, "points": placed(curve), "first": curve[0][1], "last": curve[-1][1]}
                  for each, curve in sorted(curves.items())],
    }  # fmt: skip


def dots(table: Mapping[str, Any]) -> dict[str, Any]:
    """The systems of a paper's table by their value of its metric, ours with their interval."""
    metric = table["metric"]
    lines = table["lines"]
    ends = [line[side] for line in lines if line["ours"] for side in ("low", "high") if line[side] is not None]
    values = [line["values"][metric] for line in lines] + ends
    on = axis(min(values), max(values))
    found = []
    for line in lines:
        left = place(line["low"], on) if line["ours"] and line["low"] is not None else None
        found.append({
            "name": line["name"], "ours": line["ours"], "value": line["values"][metric],
            "place": place(line["values"][metric], on), "left": left,
            "span": None if left is None else place(line["high"], on) - left,
        })  # fmt: skip
    return {**table, "axis": on, "dots": found}


def sizes(storage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a passage takes, each as a part of the most."""
    sums = [sum(each["parts"].values()) for each in storage]
    most = max(sums, default=0) or 1
    return [{**each, "bytes": total, "width": total / most} for each, total in zip(storage, sums, strict=True)]
