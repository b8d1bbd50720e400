"""The runs of a study in the order in which they are done, and what is kept of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flows.study.claims import Block, Claim, Study
from flows.study.systems import Curves
from storage.results.study_runs import Trial

CURVES = "curves"
"""The name of the learning curves, for --only and in the status."""


def needed(study: Study, only: Sequence[str] = ()) -> list[Trial]:
    """Return the runs of the claims of these names, then those of the learning curves; all where no name is given."""
    claims = study.chosen([name for name in only if name != CURVES or not study.curves])
    names = {claim.name for claim in claims} if not only or set(only) != {CURVES} else set()
    ordered = [trial for block in study.blocks for trial in _block_runs(study, block, names)]
    drawn = curve_runs(study.curves) if study.curves and (not only or CURVES in only) else []
    return list(dict.fromkeys([*ordered, *drawn]))


def claim_runs(claim: Claim) -> list[Trial]:
    """Return the runs of a claim without duplicates, seed by seed."""
    return sorted(claim.all_trials, key=lambda trial: trial.seed)


def curve_runs(curves: Curves) -> list[Trial]:
    """Return all runs of the learning curves, seed by seed, those with few steps first."""
    trials = [trial for row in curves.rows for trial in curves.trials_without(row)]
    for steps in sorted({steps for system in curves.systems.values() for steps in system.steps}):
        for name, system in curves.systems.items():
            trials += curves.trials(name, steps) if steps in system.steps else []
    return sorted(dict.fromkeys(trials), key=lambda trial: curves.seeds.index(trial.seed))


def measured_rows(study: Study, recipe: str) -> dict[str, list[str]]:
    """Return the rows of a recipe that claims compare or curves draw, each with its metrics."""
    rows: dict[str, list[str]] = {}
    for row, metric in _measured(study, recipe):
        metrics = rows.setdefault(row, [])
        if metric not in metrics:
            metrics.append(metric)
    return rows


def _block_runs(study: Study, block: Block, names: set[str]) -> list[Trial]:
    """Return the runs of a block's claims of these names, all of a seed or of a fold before the next."""
    trials = [
        trial for claim in study.claims if claim.name in block.claims and claim.name in names
        for trial in claim.all_trials
    ]  # fmt: skip
    return sorted(dict.fromkeys(trials), key=lambda trial: trial.seed if block.first == "seed" else trial.fold or 0)


def _measured(study: Study, recipe: str) -> Iterator[tuple[str, str]]:
    for claim in study.claims:
        for system in claim.arms.values():
            if system.recipe == recipe and system.row and claim.metric:
                yield system.row, claim.metric
    if curves := study.curves:
        drawn = [row for row in curves.rows if recipe in {system.recipe for system in curves.systems.values()}]
        for row in (*drawn, *(system.row for system in curves.without.values() if system.recipe == recipe)):
            yield row or "", curves.metric
