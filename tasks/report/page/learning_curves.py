"""Learning curves of a study: quality by pre-training steps and by CPU time, with intervals over runs and queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.errors import UserError
from storage.results.study_runs import StudyRun
from tasks.evaluation.seeds_by_queries import mean_difference
from tasks.report.page.chart_geometry import Curve
from tasks.report.page.svg_charts import curves
from tasks.report.page.templates import template
from tasks.runtime.formatting import duration

FIGURE = "study_learning_curves.svg"
WITHOUT = "without pre-training"
"""The name of the only point as long as no system has one."""


@dataclass(frozen=True)
class Point:
    """The quality of a system after a number of pre-training steps."""

    steps: int
    seconds: float | None
    """CPU seconds of the pre-training, the mean over its runs; None if one was interrupted."""
    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class LearningCurves:
    """The points of each system, by row of the report."""

    metric: str
    rows: Mapping[str, str]
    """The rows, with the words for each."""
    points: Mapping[str, Mapping[str, Sequence[Point]]]
    """By row and system, in the order of steps."""


def learning_curves(
    metric: str,
    rows: Mapping[str, str],
    systems: Mapping[str, Mapping[int, Sequence[StudyRun]]],
    without: Mapping[str, tuple[str, Sequence[StudyRun]]],
) -> LearningCurves:
    """Return the curves of systems whose runs are given by the number of steps; those without a run are left out.

    `without` has the row and the runs without pre-training, by the row of the others; all curves begin there.
    """
    points = {
        row: {
            name: [*_start(metric, *without[row]), *_points(row, metric, by_steps)]
            for name, by_steps in systems.items() if by_steps
        } or {WITHOUT: _start(metric, *without[row])}
        for row in rows
    }  # fmt: skip
    return LearningCurves(metric, rows, points)


def figure(drawn: LearningCurves) -> str:
    """Return the SVG figure: for each row a panel by steps and one by CPU time."""
    panels: dict[str, dict[str, Curve]] = {}
    for row, words in drawn.rows.items():
        for unit in ("steps", "CPU seconds"):
            panel = f"{drawn.metric} {words}, by {unit} of pre-training"
            panels[panel] = {}
            for name, points in drawn.points[row].items():
                placed = [(p.steps if unit == "steps" else p.seconds, p) for p in points]
                panels[panel][name] = [(x, p.value, p.low, p.high) for x, p in placed if x is not None]
    drawable = {panel: systems for panel, systems in panels.items() if any(systems.values())}
    return curves("Quality by pre-training", drawable, unit="", columns=2)


def curves_part(drawn: LearningCurves) -> str:
    """Return the part of the page of results about the learning curves."""
    return template("learning_curves.md.j2", duration=duration).render(
        metric=drawn.metric, rows=list(drawn.rows.values()), lines=list(lines(drawn))
    )


def lines(drawn: LearningCurves) -> Iterator[dict[str, Any]]:
    """Yield the lines of the table: one for each system and number of steps; that without pre-training comes once."""
    names = dict.fromkeys(name for systems in drawn.points.values() for name in systems)
    for number, name in enumerate(names):
        by_row = {row: {point.steps: point for point in drawn.points[row].get(name, [])} for row in drawn.rows}
        for steps in sorted({steps for points in by_row.values() for steps in points if steps or not number}):
            values = [by_row[row].get(steps) for row in drawn.rows]
            known = next(point for point in values if point)
            yield {"system": name if steps else WITHOUT, "point": known, "values": values}


def _start(metric: str, row: str, runs: Sequence[StudyRun]) -> list[Point]:
    return list(_points(row, metric, {0: runs}))


def _points(row: str, metric: str, by_steps: Mapping[int, Sequence[StudyRun]]) -> Iterator[Point]:
    for steps, runs in sorted(by_steps.items()):
        by_fold: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        for run in runs:
            measured = run.measured(row, metric) if run.facts.fold is None else run.clustered(row, metric)
            if measured is not None:
                by_fold[run.facts.fold or 0].append(measured)
        if by_fold:
            _check_queries(row, by_fold)
            mean = mean_difference(np.array([[values for _, values in runs] for runs in by_fold.values()]))
            yield Point(steps, _seconds(steps, runs), mean.value, *mean.interval(), mean.seeds)


def _check_queries(row: str, by_fold: Mapping[int, Sequence[tuple[Any, Any]]]) -> None:
    """Raise UserError where runs of a fold have other queries, or folds another number of runs or queries."""
    for fold, runs in by_fold.items():
        if any(not ids.equals(runs[0][0]) for ids, _ in runs):
            raise UserError(f"{row}: runs of fold {fold} have different queries; remove those of older data")
    if len({tuple(map(len, (runs, runs[0][0]))) for runs in by_fold.values()}) > 1:
        raise UserError(f"{row}: expected as many runs and queries in every fold of a learning curve")


def _seconds(steps: int, runs: Sequence[StudyRun]) -> float | None:
    """Return the mean CPU time of the runs' pre-training, 0 without steps."""
    if not steps:
        return 0.0
    per_step = [run.facts.pretraining.get("cpu_seconds") for run in runs]
    known = [seconds for seconds in per_step if seconds is not None]
    return steps * sum(known) / len(known) if len(known) == len(per_step) else None
