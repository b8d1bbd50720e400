"""Learning curves of the systems of a study's claim, averaged over the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from storage.results.study_runs import StudyRun
from tasks.report.page.chart_geometry import Curve

PANELS = {
    "MRR@10 of the retrieval probe during pre-training": ("pre-training, retrieval probe", "MRR@10"),
    "masked language model loss of pre-training (mask rates differ)": ("pre-training", "mlm"),
}
FINE_TUNING = "fine-tuning loss"


def panels(systems: Sequence[tuple[str, str | None, Sequence[StudyRun]]]) -> dict[str, dict[str, Curve]]:
    """Return the curves by panel and system; a system is its name, its row of the report, and its runs by seed."""
    curves = {
        panel: {name: curve for name, _, runs in systems if (curve := _mean_curve(runs, *logged))}
        for panel, logged in PANELS.items()
    }
    curves[FINE_TUNING] = {name: curve for name, row, runs in systems if (curve := _fine_tuning(row, runs))}
    return {panel: lines for panel, lines in curves.items() if lines}


def _fine_tuning(row: str | None, runs: Sequence[StudyRun]) -> Curve:
    """Return the contrastive loss of the fine-tuning round that a row of the report evaluates.

    For the row of one view it is the loss of this view, else the sum of all views.
    """
    if row is None or not runs:
        return []
    table = runs[0].curves
    logged = sorted(set(zip(table["training"].to_pylist(), table["name"].to_pylist(), strict=True)))
    round_ = next((training for training, _ in logged if _evaluates(row, training)), "")
    losses = [name for training, name in logged if training == round_ and name.startswith("contrast")]
    of_view = [name for name in losses if row == f"{round_}_{name.removeprefix('contrast_')}"]
    curves = [_mean_curve(runs, round_, name) for name in of_view or losses]
    return [(points[0][0], sum(value for _, value in points)) for points in zip(*curves, strict=True)]


def _evaluates(row: str, training: str) -> bool:
    """Return whether a row is of a training: its own, that of a view (`NAME_dense`), or of a sample (`NAME_0`)."""
    return row == training or row.startswith(f"{training}_") or training.startswith(f"{row}_")


def _mean_curve(runs: Sequence[StudyRun], training: str, name: str) -> Curve:
    """Return the mean of a logged value over the runs, which have equal steps."""
    curves = []
    for run in runs:
        table = run.curves
        points = table.filter(pc.and_(pc.equal(table["training"], training), pc.equal(table["name"], name)))
        curves.append(list(zip(points["step"].to_pylist(), points["value"].to_pylist(), strict=True)))
    return [
        (points[0][0], sum(value for _, value in points) / len(points))
        for points in zip(*curves, strict=False) if points
    ]  # fmt: skip
