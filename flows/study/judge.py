"""What a study has found: for each claim its contrasts' verdicts, from what is kept of its runs and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from flows.study.claims import Against, Claim, Study
from storage.errors import UserError
from storage.results.study_runs import Kept, kept
from tasks.evaluation.claim_verdicts import Cheaper, Contrast, cheaper, contrasted, judged, of_claim
from tasks.evaluation.significance import Values
from tasks.report.page.study_markdown import Arm, Claimed

Runs = Mapping[tuple[str, int], Kept]
TOLD = {
    "name", "statement", "paper", "source", "printed_metric", "metric", "collection", "queries", "seeds", "smallest",
    "note",
}  # fmt: skip


def found(study: Study, results: Path) -> list[Claimed]:
    """The verdict on every claim; all contrasts of the study are one family."""
    there = {
        (arm.recipe, seed): run
        for claim in study.claims for arm in claim.arms.values() for seed in claim.seeds
        if (run := kept(results, arm.recipe, seed))
    }  # fmt: skip
    both = [(claim, against) for claim in study.claims for against in claim.contrasts]
    tests = iter(judged([_tested(*each, there) for each in both if each[0].measures == "quality"]))
    found = []
    for claim in study.claims:
        contrasts: list[Contrast | Cheaper] = [
            next(tests) if claim.measures == "quality" else _priced(claim, against, there)
            for against in claim.contrasts
        ]
        arms = [
            Arm(
                name,
                arm.words,
                arm.row,
                [there[arm.recipe, seed] for seed in claim.seeds if (arm.recipe, seed) in there],
            )
            for name, arm in claim.arms.items()
        ]
        found.append(Claimed(
            **claim.model_dump(include=TOLD), arms=arms, contrasts=contrasts,
            printed=[each.printed for each in claim.contrasts], verdict=of_claim([each.verdict for each in contrasts]),
        ))  # fmt: skip
    return found


def _tested(claim: Claim, against: Against, there: Runs) -> Contrast:
    lacking = missing(claim, against, there)
    if lacking or claim.metric is None:
        return Contrast(against.arm, against.than, missing=lacking)
    mine, theirs = (_measured(claim, arm, there) for arm in (against.arm, against.than))
    first, *others = [queries for queries, _ in (*mine, *theirs)]
    if not all(queries.equals(first) for queries in others):
        raise UserError(
            f"{claim.name}: {against.arm} and {against.than} were measured on different queries; remove what is kept "
            "of older data, and the study makes it again"
        )
    return contrasted(against.arm, against.than, *([values for _, values in each] for each in (mine, theirs)))


def _measured(claim: Claim, name: str, there: Runs) -> list[tuple[pa.ChunkedArray, Values]]:
    """An arm's queries and values, by seed."""
    arm, found = claim.arms[name], []
    for seed in claim.seeds:
        run = there[arm.recipe, seed]
        measured = run.measured(arm.row or "", claim.metric or "")
        if measured is None:
            raise UserError(
                f"{run.folder}: has no {claim.metric} of {arm.row}; remove it, and the study makes it again"
            )
        if len(measured[1]) != claim.queries or run.facts.collection != claim.collection:
            raise UserError(
                f"{run.folder}: {claim.name} asks the {claim.queries:,} queries of {claim.collection}; found "
                f"{len(measured[1]):,} of {run.facts.collection}"
            )
        found.append(measured)
    return found


def _priced(claim: Claim, against: Against, there: Runs) -> Cheaper:
    """What a step of two pre-trainings costs; runs whose pre-training was cut off were not timed, and are missing."""
    timed = {each: run for each, run in there.items() if "cpu_seconds" in run.facts.pretraining}
    if lacking := missing(claim, against, timed):
        return Cheaper(against.arm, against.than, lacking)
    arms = [[timed[claim.arms[name].recipe, seed].facts.pretraining for seed in claim.seeds]
            for name in (against.arm, against.than)]  # fmt: skip
    seconds, flops = ([[each[name] for each in arm] for arm in arms] for name in ("cpu_seconds", "flops"))
    return cheaper(against.arm, against.than, (seconds[0], seconds[1]), (flops[0][0], flops[1][0]))


def missing(claim: Claim, against: Against, there: Runs) -> list[str]:
    """The runs that a contrast still needs, in words."""
    lacking = {}
    for name in (against.arm, against.than):
        recipe = claim.arms[name].recipe
        lacking[Path(recipe).stem] = [seed for seed in claim.seeds if (recipe, seed) not in there]
    return [
        f"{name} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
        for name, seeds in lacking.items() if seeds
    ]  # fmt: skip
