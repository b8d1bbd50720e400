"""Read a training's log, JSON lines with a `step` and named numbers, as curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROBE = "probe_"
PROBE_CURVE = ", retrieval probe"
"""The end of the name of a retrieval probe's curve, after that of its checkpoint."""
OBSERVED = {
    "mean weight of each expert": ("weight_",),
    "share of queries that each expert wins": ("wins_",),
    "competition": ("entropy", "ties"),
    "WordPiece tokens with a weight": ("nonzero_",),
    "magnitude of positives' scores": ("positive_",),
}
"""The values that a training logs besides its losses: the prefixes of their names, by the title of the figure."""
OBSERVED_PREFIXES = tuple(prefix for prefixes in OBSERVED.values() for prefix in prefixes)
NO_LOSS = (
    "step",
    "learning_rate",
    "rows_per_second",
    "tokens_per_second",
    "gradient_norm",
    "loss_scale",
    "skipped_steps",
    PROBE,
    *OBSERVED_PREFIXES,
)
POINTS = 160  # of a curve on the page; more would not be visible

Point = tuple[float, float]


def losses(checkpoint: Path) -> dict[str, list[Point]]:
    """Return each loss of a checkpoint's training by step, averaged to at most `POINTS` points; {} without a log."""
    return {name: averaged(points) for name, points in _logged(checkpoint).items() if not name.startswith(NO_LOSS)}


def probes(checkpoint: Path) -> dict[str, list[Point]]:
    """Return the measurements of a pre-training's retrieval probe by step; {} without a probe."""
    logged = _logged(checkpoint).items()
    return {name.removeprefix(PROBE): averaged(points) for name, points in logged if name.startswith(PROBE)}


def observed(checkpoint: Path) -> dict[str, dict[str, list[Point]]]:
    """Return the other values that a training logged, by figure and step, without figures that have no curve."""
    logged, figures = _logged(checkpoint), {}
    for title, prefixes in OBSERVED.items():
        curves = {name: averaged(points) for name, points in logged.items() if name.startswith(prefixes)}
        if curves:
            figures[title] = {_bare(name, prefixes): points for name, points in curves.items()}
    return figures


def _bare(name: str, prefixes: tuple[str, ...]) -> str:
    """Return a curve's name without the prefix that the figure's title states."""
    return next(
        (name.removeprefix(prefix) for prefix in prefixes if prefix.endswith("_") and name.startswith(prefix)), name
    )


def _logged(checkpoint: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the numbers of `logs/metrics.jsonl` by name and step.

    A resumed training has logged some steps twice: the later line counts. An incomplete last line is skipped.
    """
    path = checkpoint / "logs" / "metrics.jsonl"
    if not path.is_file():
        return {}
    curves: dict[str, dict[int, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for name, step, value in _numbers(line):
            curves.setdefault(name, {})[step] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def _numbers(line: str) -> list[tuple[str, int, float]]:
    try:
        entry: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return []
    numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
    return [(name, int(entry["step"]), float(value)) for name, value in numbers.items()]


def averaged(points: Sequence[Sequence[float]], limit: int = POINTS) -> list[Point]:
    """Return at most `limit` points (step, value), each the mean of neighbouring points."""
    width = max(1, -(-len(points) // limit))
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [(_mean([step for step, _ in group]), _mean([value for _, value in group])) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values)
