"""The results of a study in Markdown: a table of its claims, and for each claim all numbers, figures and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from storage.results.study_runs import StudyRun
from tasks.evaluation.claim_verdicts import CostComparison, SystemComparison, Verdict
from tasks.report.page.chart_geometry import Curve
from tasks.report.page.statistics import probability, signed
from tasks.report.page.study_curves import panels
from tasks.report.page.study_run_costs import costs_of_runs, package_versions
from tasks.report.page.svg_charts import Difference, curves, forest
from tasks.report.page.templates import template
from tasks.runtime.formatting import duration, short

FOREST = "study_differences.svg"


@dataclass(frozen=True)
class Arm:
    """A system of a claim, and its runs."""

    name: str
    words: str
    """The recipe and the row of its report."""
    row: str | None
    pretrained: bool
    """Whether its round starts from the pre-trained weights."""
    runs: Sequence[StudyRun]
    """One for each fold and seed."""
    second_runs: Sequence[StudyRun] = ()
    """Those of a second look; empty while one is missing."""


@dataclass(frozen=True)
class Claimed:
    """A claim and its results."""

    name: str
    statement: str
    paper: str | None
    source: str | None
    printed_metric: str | None
    metric: str | None
    """None if the claim is about a cost."""
    collection: str
    queries: int
    seeds: Sequence[int]
    folds: Sequence[int] | None
    seeding: Literal["every fold", "in turn"]
    smallest: float | None
    note: str | None
    arms: Sequence[Arm]
    contrasts: Sequence[SystemComparison | CostComparison]
    printed: Sequence[Sequence[float] | None]
    """The two numbers reported in the paper for each comparison, if there are any."""
    second_folds: Sequence[int | None]
    """The number of folds of each comparison's second look, with one run each; None without one."""
    verdict: Verdict


def study_part(
    title: str, description: str, claims: Sequence[Claimed], dropped: Sequence[tuple[str, str]] = (),
    runs: Sequence[StudyRun] = (),
) -> str:  # fmt: skip
    """Return the study's part of the page of results.

    `dropped` are claims that it does not test, with the reasons; `runs` are all kept runs.
    """
    costs = list(costs_of_runs(runs))
    return template("study.md.j2", duration=duration, short=short).render(
        title=title, description=description, lines=list(claim_lines(claims)),
        forest=FOREST if _differences(claims) else None, claims=[_claim(claim) for claim in claims],
        dropped=dropped, runs=costs, cpu=sum(run["cpu"] for run in costs), counts=verdict_counts(claims),
    )  # fmt: skip


def runs_page(runs: Sequence[StudyRun]) -> str:
    """Return the page that lists the runs of a study: commands, costs, machines, reports and files."""
    return template("study_runs.md.j2", duration=duration).render(
        runs=list(costs_of_runs(runs)), versions=package_versions(runs)
    )


def pictures(claims: Sequence[Claimed]) -> dict[str, str]:
    """Return the SVG files of the study, by name."""
    differences = _differences(claims)
    files = {FOREST: forest("Differences of the study's comparisons", differences)} if differences else {}
    return files | {
        curves_of(claim): curves(f"{claim.name}: learning curves", lines)
        for claim in claims if (lines := _panels(claim))
    }  # fmt: skip


def curves_of(claim: Claimed) -> str:
    """Return the file name of a claim's learning curves."""
    return f"study_{claim.name}.svg"


def _differences(claims: Sequence[Claimed]) -> list[Difference]:
    return [
        Difference(f"{claim.name}: {comparison.arm} − {comparison.than}", comparison.difference.value,
                   comparison.low, comparison.high, printed[0] - printed[1] if printed else None, comparison.verdict)
        for claim in claims for comparison, printed in zip(claim.contrasts, claim.printed, strict=True)
        if isinstance(comparison, SystemComparison) and comparison.difference
        and comparison.low is not None and comparison.high is not None
    ]  # fmt: skip


def claim_lines(claims: Sequence[Claimed]) -> Iterator[dict[str, Any]]:
    """Yield a line for each comparison; the first of a claim has its statement."""
    for claim in claims:
        lines = zip(claim.contrasts, claim.printed, claim.second_folds, strict=True)
        for number, (comparison, printed, second_folds) in enumerate(lines):
            yield {
                "claim": claim.name, "statement": claim.statement, "first": number == 0, "arm": comparison.arm,
                "than": comparison.than, "source": source_in_words(claim), "p": _p(comparison),
                "ours": _measured(claim, comparison),
                "printed": f"{signed(printed[0] - printed[1])} {claim.printed_metric}" if printed else "–",
                "verdict": comparison.verdict, "words": _words(comparison), "note": claim.note is not None,
                "sizes": _sizes(claim, second_folds if _of_two_looks(comparison) else None),
            }  # fmt: skip


def source_in_words(claim: Claimed) -> str:
    """Return the place in a paper that states a claim."""
    return f"{claim.paper}, {claim.source}" if claim.paper else "no paper"


def _of_two_looks(comparison: SystemComparison | CostComparison) -> bool:
    return isinstance(comparison, SystemComparison) and bool(comparison.of_looks)


def _sizes(claim: Claimed, second_folds: int | None) -> str:
    """Return the numbers of queries and of runs of a system; the folds of a cross-validation have different queries."""
    number = len(claim.folds or [0]) * (len(claim.seeds) if claim.seeding == "every fold" else 1)
    runs = f"{number} in {len(claim.folds)} folds" if claim.folds else str(number)
    runs += f" and {second_folds} in {second_folds}" if second_folds else ""
    return f"{claim.queries:,} × {runs}" if claim.metric else f"– × {runs}"


def _measured(claim: Claimed, comparison: SystemComparison | CostComparison) -> str:
    """Return the measured difference with its metric."""
    return (
        "–"
        if comparison.verdict == "not run"
        else f"{difference_in_words(comparison)} {claim.metric or 'CPU seconds of a step'}"
    )


def difference_in_words(comparison: SystemComparison | CostComparison) -> str:
    """Return the difference, or the ratio of costs, with its interval."""
    if isinstance(comparison, CostComparison):
        return (
            "–"
            if comparison.ratio is None
            else f"× {comparison.ratio:.2f} [{comparison.low:.2f}, {comparison.high:.2f}]"
        )
    if comparison.difference is None or comparison.low is None or comparison.high is None:
        return "–"
    return f"{signed(comparison.difference.value)} [{signed(comparison.low)}, {signed(comparison.high)}]"


def _p(comparison: SystemComparison | CostComparison) -> str:
    return _p_value(comparison.p_holm).removeprefix("= ") if isinstance(comparison, SystemComparison) else "–"


def _words(comparison: SystemComparison | CostComparison) -> str:
    """Return the verdict; an inconclusive one has the minimum detectable effect, one without all runs their number."""
    if comparison.missing:
        return f"{comparison.runs[0]} of {comparison.runs[1]} runs"
    shown = None
    if isinstance(comparison, SystemComparison) and comparison.verdict == "inconclusive":
        shown = comparison.detectable
    return (
        f"**{comparison.verdict}**"
        if shown is None
        else f"{comparison.verdict}; minimum detectable effect {shown:.3f} (80 % power)"
    )


def verdict_counts(claims: Sequence[Claimed]) -> str:
    """Return the numbers of claims by verdict, without the verdicts that no claim has."""
    kinds: tuple[Verdict, ...] = ("supported", "contradicted", "bounded", "inconclusive", "not run")
    number = {kind: sum(claim.verdict == kind for claim in claims) for kind in kinds}
    explained = {"bounded": "bounded (less than half of the paper's effect)", "not run": "without all of their runs"}
    words = {kind: explained.get(kind, kind) for kind in kinds}
    return f"Verdicts of {len(claims)} claims: " + ", ".join(
        f"{number[kind]} {words[kind]}" for kind in kinds if number[kind]
    )


def _claim(claim: Claimed) -> dict[str, Any]:
    return {
        "claim": claim, "source": source_in_words(claim), "curves": curves_of(claim) if _panels(claim) else None,
        "seeds": list(_seeds(claim)), "arms": [_arm(arm, claim) for arm in claim.arms if arm.runs],
        "contrasts": [_contrast(comparison) for comparison in claim.contrasts if not comparison.missing],
        "second": any(arm.second_runs for arm in claim.arms),
    }  # fmt: skip


def _seeds(claim: Claimed) -> Iterator[str]:
    """Yield the headings of the seeds' columns, with their folds where seeds take turns."""
    for number, seed in enumerate(claim.seeds):
        folds = [str(fold) for fold in (claim.folds or [])[number :: len(claim.seeds)]]
        yield f"seed {seed}" + (f", folds {' and '.join(folds)}" if claim.seeding == "in turn" else "")


def _arm(arm: Arm, claim: Claimed) -> dict[str, Any]:
    """Return a system's value for each seed, the mean over folds of a metric or of the CPU seconds per step."""
    values: dict[int, list[float]] = {}
    for run in arm.runs:
        if (value := _value(run, arm.row, claim.metric)) is not None:
            values.setdefault(run.facts.seed, []).append(value)
    folds = len(claim.folds or [0]) // (len(claim.seeds) if claim.seeding == "in turn" else 1)
    complete = {seed: mean(of_seed) for seed, of_seed in values.items() if len(of_seed) == folds}
    return {
        "name": arm.name, "words": arm.words, "values": [complete.get(seed) for seed in claim.seeds],
        "mean": mean(complete.values()) if len(complete) == len(claim.seeds) else None,
        "second": mean(_values(arm.second_runs, arm.row, claim.metric)) if arm.second_runs else None,
        "pretraining": next((run.facts.pretraining for run in arm.runs), {}) if arm.pretrained else {},
    }  # fmt: skip


def _values(runs: Sequence[StudyRun], row: str | None, metric: str | None) -> Iterator[float]:
    return (value for run in runs if (value := _value(run, row, metric)) is not None)


def _value(run: StudyRun, row: str | None, metric: str | None) -> float | None:
    if row is None or metric is None:
        return run.facts.pretraining.get("cpu_seconds")
    measured = run.measured(row, metric)
    return None if measured is None else float(measured[1].mean())


def _contrast(comparison: SystemComparison | CostComparison) -> dict[str, Any]:
    if isinstance(comparison, CostComparison):
        return {
            "comparison": comparison,
            "ours": difference_in_words(comparison),
            "words": _words(comparison),
            "cost": True,
        }
    return {
        "comparison": comparison, "ours": difference_in_words(comparison), "words": _words(comparison), "cost": False,
        "p": _p_value(comparison.p), "p_holm": _p_value(comparison.p_holm),
        "p_randomisation": _p_value(comparison.p_randomisation), "p_seeds": _p_value(comparison.p_seeds),
        "by_seed": ", ".join(signed(value) for value in comparison.by_seed), "looks": _looks(comparison),
    }  # fmt: skip


def _looks(comparison: SystemComparison) -> str:
    """Return what each of two looks found, or how far the second one is; empty where only one is planned."""
    if comparison.second_runs is None:
        return ""
    if not comparison.of_looks:
        kept, needed = comparison.second_runs
        return f"only the first look, since {kept} of {needed} runs of the second are kept"
    found = []
    for name, look in zip(("first", "second"), comparison.of_looks, strict=True):
        low, high = look.interval()
        found.append(f"{name} {signed(look.value)} [{signed(low)}, {signed(high)}], p {_p_value(look.p())}")
    return f"both looks together ({'; '.join(found)})"


def _p_value(p: float | None) -> str:
    return "–" if p is None else probability(p)


def _panels(claim: Claimed) -> dict[str, dict[str, Curve]]:
    return panels([(arm.name, arm.row, arm.runs) for arm in claim.arms])
