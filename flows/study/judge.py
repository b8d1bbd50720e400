"""The verdicts on a study's claims, from the stored results of its runs only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from flows.study.claims import Claim, Comparison, Study
from storage.errors import UserError
from storage.results.study_runs import StudyRun, read_study_run
from tasks.evaluation.claim_verdicts import (
    CostComparison,
    SystemComparison,
    claim_verdict,
    compare_costs,
    compare_systems,
    with_verdicts,
)
from tasks.evaluation.significance import Values
from tasks.report.page.study_markdown import Arm, Claimed

Runs = Mapping[tuple[str, int], StudyRun]
REPORTED = {
    "name", "statement", "paper", "source", "printed_metric", "metric", "collection", "queries", "seeds", "smallest",
    "note",
}  # fmt: skip


def judge_claims(study: Study, results: Path) -> list[Claimed]:
    """Return the verdict on every claim; all comparisons of the study are one family for multiple testing."""
    stored = {
        (system.recipe, seed): run
        for claim in study.claims for system in claim.arms.values() for seed in claim.seeds
        if (run := read_study_run(results, system.recipe, seed))
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
                [stored[system.recipe, seed] for seed in claim.seeds if (system.recipe, seed) in stored],
            )
            for name, system in claim.arms.items()
        ]
        claims.append(Claimed(
            **claim.model_dump(include=REPORTED), arms=arms, contrasts=contrasts,
            printed=[comparison.printed for comparison in claim.contrasts],
            verdict=claim_verdict([contrast.verdict for contrast in contrasts]),
        ))  # fmt: skip
    return claims


def _tested(claim: Claim, comparison: Comparison, stored: Runs) -> SystemComparison:
    lacking = missing(claim, comparison, stored)
    if lacking or claim.metric is None:
        return SystemComparison(comparison.arm, comparison.than, missing=lacking, printed=comparison.effect)
    mine, theirs = (_measured(claim, name, stored) for name in (comparison.arm, comparison.than))
    first, *others = [queries for queries, _ in (*mine, *theirs)]
    if not all(queries.equals(first) for queries in others):
        raise UserError(
            f"{claim.name}: {comparison.arm} and {comparison.than} were measured on different queries; remove the "
            "results of older data, and the study runs them again"
        )
    tested = compare_systems(
        comparison.arm, comparison.than, *([values for _, values in runs] for runs in (mine, theirs))
    )
    return replace(tested, printed=comparison.effect)


def _measured(claim: Claim, name: str, stored: Runs) -> list[tuple[pa.ChunkedArray, Values]]:
    """Return a system's queries and values, for each seed."""
    system, measurements = claim.arms[name], []
    for seed in claim.seeds:
        run = stored[system.recipe, seed]
        measured = run.measured(system.row or "", claim.metric or "")
        if measured is None:
            raise UserError(
                f"{run.folder}: has no {claim.metric} of {system.row}; remove it, and the study runs it again"
            )
        if len(measured[1]) != claim.queries or run.facts.collection != claim.collection:
            raise UserError(
                f"{run.folder}: {claim.name} needs the {claim.queries:,} queries of {claim.collection}; found "
                f"{len(measured[1]):,} of {run.facts.collection}"
            )
        measurements.append(measured)
    return measurements


def _priced(claim: Claim, comparison: Comparison, stored: Runs) -> CostComparison:
    """Compare the cost per step of two pre-trainings; interrupted ones were not timed, and count as missing."""
    timed = {recipe_and_seed: run for recipe_and_seed, run in stored.items() if "cpu_seconds" in run.facts.pretraining}
    if lacking := missing(claim, comparison, timed):
        return CostComparison(comparison.arm, comparison.than, lacking)
    systems = [[timed[claim.arms[name].recipe, seed].facts.pretraining for seed in claim.seeds]
            for name in (comparison.arm, comparison.than)]  # fmt: skip
    seconds, flops = ([[facts[name] for facts in seeds] for seeds in systems] for name in ("cpu_seconds", "flops"))
    return compare_costs(comparison.arm, comparison.than, (seconds[0], seconds[1]), (flops[0][0], flops[1][0]))


def missing(claim: Claim, comparison: Comparison, stored: Runs) -> list[str]:
    """Return the runs that a comparison still needs, for the user."""
    lacking = {}
    for name in (comparison.arm, comparison.than):
        recipe = claim.arms[name].recipe
        lacking[Path(recipe).stem] = [seed for seed in claim.seeds if (recipe, seed) not in stored]
    return [
        f"{name} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
        for name, seeds in lacking.items() if seeds
    ]  # fmt: skip
