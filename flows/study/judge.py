"""The verdicts on a study's claims, from the stored results of its runs only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from flows.study.claims import Claim, Comparison, Study
from storage.errors import UserError
from storage.results.study_runs import StudyRun, Trial, read_study_run
from tasks.evaluation.claim_verdicts import (
    CostComparison,
    SystemComparison,
    claim_verdict,
    compare_costs,
    compare_systems,
    with_verdicts,
)
from tasks.evaluation.significance import Values
from tasks.evaluation.two_looks import Look
from tasks.report.page.learning_curves import LearningCurves, learning_curves
from tasks.report.page.study_markdown import Arm, Claimed

Runs = Mapping[Trial, StudyRun]
REPORTED = {
    "name", "statement", "paper", "source", "printed_metric", "metric", "collection", "queries", "seeds", "folds",
    "seeding", "smallest", "note",
}  # fmt: skip


def judge_claims(study: Study, results: Path) -> list[Claimed]:
    """Return the verdict on every claim; all comparisons of the study are one family for multiple testing."""
    stored = {
        trial: run
        for claim in study.claims for trial in claim.all_trials
        if (run := read_study_run(trial.folder(results)))
    }  # fmt: skip
    quality = [claim for claim in study.claims if claim.measures == "quality"]
    tests = iter(with_verdicts([_tested(claim, pair, stored) for claim in quality for pair in claim.contrasts]))
    claims = []
    for claim in study.claims:
        contrasts: list[SystemComparison | CostComparison] = [
            next(tests) if claim.measures == "quality" else _priced(claim, comparison, stored)
            for comparison in claim.contrasts
        ]
        arms = [
            Arm(
                name,
                system.words,
                system.row,
                system.pretrained,
                [stored[trial] for trial in claim.trials(system) if trial in stored],
                _second_runs_of(claim, name, stored),
            )
            for name, system in claim.arms.items()
        ]
        claims.append(Claimed(
            **claim.model_dump(include=REPORTED), arms=arms, contrasts=contrasts,
            printed=[comparison.printed for comparison in claim.contrasts],
            second_folds=[len(pair.second.folds) if pair.second else None for pair in claim.contrasts],
            verdict=claim_verdict([contrast.verdict for contrast in contrasts]),
        ))  # fmt: skip
    return claims


def drawn_curves(study: Study, results: Path) -> LearningCurves | None:
    """Return the study's learning curves of the seeds with a run in every fold; None if there are none."""
    if (wanted := study.curves) is None:
        return None
    without = {row: _complete(wanted.trials_without(row), results) for row in wanted.rows}
    systems: dict[str, dict[int, list[StudyRun]]] = {}
    for name, system in wanted.systems.items():
        by_steps = {steps: _complete(wanted.trials(name, steps), results) for steps in sorted(system.steps)}
        systems[name] = {steps: runs for steps, runs in by_steps.items() if runs}
    if not any(systems.values()) and not any(without.values()):
        return None
    starts = {row: (wanted.without[row].row or row, runs) for row, runs in without.items()}
    return learning_curves(wanted.metric, wanted.rows, systems, starts)


def _complete(trials: Sequence[Trial], results: Path) -> list[StudyRun]:
    """Return the kept runs of the seeds that have a run in every fold."""
    runs = {trial: read_study_run(trial.folder(results)) for trial in trials}
    lacking = {trial.seed for trial, run in runs.items() if run is None}
    return [run for trial, run in runs.items() if run and trial.seed not in lacking]


def _tested(claim: Claim, comparison: Comparison, stored: Runs) -> SystemComparison:
    printed, waiting = claim.bounded_effect(comparison), _second_runs(claim, comparison, stored)
    if (lacking := missing(claim, comparison, stored)) or claim.metric is None:
        return SystemComparison(
            comparison.arm, comparison.than, missing=lacking, runs=_progress(claim, comparison, stored),
            printed=printed, second_runs=waiting,
        )  # fmt: skip
    both = claim.trials(claim.arms[comparison.arm]), claim.trials(claim.arms[comparison.than])
    look = _look(claim, comparison, stored, both, 1 if claim.seeding == "in turn" else len(claim.seeds))
    second = None
    if comparison.second and _is_complete(waiting):
        arm, than = (comparison.second.trials(claim.arms[name]) for name in (comparison.arm, comparison.than))
        second = _look(claim, comparison, stored, (arm, than), 1)
        if sorted(look.articles) != sorted(second.articles):
            raise UserError(
                f"{claim.name}: {comparison.arm} and {comparison.than}: the second look has other articles than the "
                "first; remove the results of older data, and the study runs them again"
            )
    tested = compare_systems(comparison.arm, comparison.than, look, second)
    return replace(tested, printed=printed, second_runs=waiting)


def _second_runs(claim: Claim, comparison: Comparison, stored: Runs) -> tuple[int, int] | None:
    """Return how many runs of a second look are kept, and how many there are."""
    if (second := comparison.second) is None:
        return None
    systems = (claim.arms[name] for name in (comparison.arm, comparison.than))
    trials = {trial for system in systems for trial in second.trials(system)}
    return len(trials & set(stored)), len(trials)


def _is_complete(runs: tuple[int, int] | None) -> bool:
    return runs is not None and runs[0] == runs[1]


def _second_runs_of(claim: Claim, name: str, stored: Runs) -> list[StudyRun]:
    """Return the runs of a system in a second look; none until both systems of a comparison have all of them."""
    looks = [
        pair.second for pair in claim.contrasts
        if pair.second and name in (pair.arm, pair.than) and _is_complete(_second_runs(claim, pair, stored))
    ]  # fmt: skip
    return [stored[trial] for trial in looks[0].trials(claim.arms[name])] if looks else []


def _look(
    claim: Claim, comparison: Comparison, stored: Runs, both: tuple[Sequence[Trial], Sequence[Trial]], seeds: int
) -> Look:
    """Return the values of two systems in their runs, of which every fold has `seeds`."""
    names = comparison.arm, comparison.than
    mine, theirs = (_measured(claim, name, trials, stored) for name, trials in zip(names, both, strict=True))
    of_fold: dict[int | None, pa.ChunkedArray] = {}
    for fold, queries, _ in (*mine, *theirs):
        if not queries.equals(of_fold.setdefault(fold, queries)):
            raise UserError(
                f"{claim.name}: {comparison.arm} and {comparison.than} were measured on different queries; remove the "
                "results of older data, and the study runs them again"
            )
    if len({len(queries) for queries in of_fold.values()}) > 1:
        raise UserError(f"{claim.name}: folds: expected as many articles in every fold, so that they count alike")
    own, baseline = (_table([values for _, _, values in runs], seeds, claim.folds) for runs in (mine, theirs))
    articles = [str(name) for of_one in of_fold.values() for name in of_one.to_pylist()] if claim.folds else []
    return Look(own, baseline, articles, [trial.seed for trial in both[0]] if claim.folds and seeds == 1 else None)


def _table(values: Sequence[Values], seeds: int, folds: Sequence[int] | None) -> Values:
    """Return the values of the runs, with folds as their first dimension and the seeds of a fold as the second."""
    if folds is None:
        return np.stack(values)
    return np.stack([np.stack(values[k : k + seeds]) for k in range(0, len(values), seeds)])


def _measured(
    claim: Claim, name: str, trials: Sequence[Trial], stored: Runs
) -> list[tuple[int | None, pa.ChunkedArray, Values]]:
    """Return the fold of each run of a system, and its queries and their values, or with folds articles and means."""
    system, measurements = claim.arms[name], []
    queries: dict[int | None, int] = {}
    for trial in trials:
        run = stored[trial]
        measured = run.measured(system.row or "", claim.metric or "")
        if measured is None:
            raise UserError(
                f"{run.folder}: has no {claim.metric} of {system.row}; remove it, and the study runs it again"
            )
        queries[trial.fold] = len(measured[1])
        expected = claim.collection if trial.fold is None else f"{claim.collection}/fold_{trial.fold}_dev"
        if run.facts.collection != expected or (trial.fold is None and len(measured[1]) != claim.queries):
            raise UserError(
                f"{run.folder}: {claim.name} needs the {claim.queries:,} queries of {expected}; found "
                f"{len(measured[1]):,} of {run.facts.collection}"
            )
        clustered = run.clustered(system.row or "", claim.metric or "")
        measurements.append((trial.fold, *(measured if trial.fold is None or clustered is None else clustered)))
    if sum(queries.values()) != claim.queries:
        raise UserError(
            f"{claim.name}: needs the {claim.queries:,} queries of {claim.collection}; found {sum(queries.values()):,} "
            "in its folds"
        )
    return measurements


def _priced(claim: Claim, comparison: Comparison, stored: Runs) -> CostComparison:
    """Compare the cost per step of two pre-trainings; interrupted ones were not timed, and count as missing."""
    timed = {trial: run for trial, run in stored.items() if "cpu_seconds" in run.facts.pretraining}
    if lacking := missing(claim, comparison, timed):
        return CostComparison(comparison.arm, comparison.than, lacking, _progress(claim, comparison, timed))
    systems = [[timed[trial].facts.pretraining for trial in claim.trials(claim.arms[name])]
            for name in (comparison.arm, comparison.than)]  # fmt: skip
    seconds, flops = ([[facts[name] for facts in seeds] for seeds in systems] for name in ("cpu_seconds", "flops"))
    seeds_of_runs = [trial.seed for trial in claim.trials(claim.arms[comparison.arm])]
    return compare_costs(
        comparison.arm, comparison.than, seeds_of_runs, (seconds[0], seconds[1]), (flops[0][0], flops[1][0])
    )


def _progress(claim: Claim, comparison: Comparison, stored: Runs) -> tuple[int, int]:
    """Return how many runs of both systems are kept, and how many there are."""
    systems = (claim.arms[name] for name in (comparison.arm, comparison.than))
    trials = {trial for system in systems for trial in claim.trials(system)}
    return len(trials & set(stored)), len(trials)


def missing(claim: Claim, comparison: Comparison, stored: Runs) -> list[str]:
    """Return the runs that a comparison still needs, for the user."""
    lacking: dict[str, list[str]] = {}
    for name in (comparison.arm, comparison.than):
        system = claim.arms[name]
        lacking[Path(system.recipe).stem] = [trial.words for trial in claim.trials(system) if trial not in stored]
    return [f"{name} ({', '.join(trials)})" for name, trials in lacking.items() if trials]
