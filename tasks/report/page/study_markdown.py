"""What a study found, in Markdown: the table of its claims, and for each of them all numbers, pictures and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from jinja2 import Template

from storage.results.study_runs import StudyRun
from tasks.evaluation.claim_verdicts import Cheaper, Contrast, Verdict
from tasks.report.page.statistics import probability
from tasks.report.page.svg_charts import Curve, Difference, curves, forest
from tasks.report.page.templates import signed, template
from tasks.runtime.formatting import duration, short

FOREST = "study_differences.svg"
PANELS = {
    "MRR@10 of the retrieval probe, while pre-training": ("pre-training, retrieval probe", "MRR@10"),
    "loss at masked words, whose shares differ, pre-training": ("pre-training", "mlm"),
}
FINE_TUNING = "loss of the fine-tuning"


@dataclass(frozen=True)
class Arm:
    """An arm of a claim, and what there is of it."""

    name: str
    words: str
    """Recipe and row."""
    row: str | None
    runs: Sequence[StudyRun]
    """By seed."""


@dataclass(frozen=True)
class Claimed:
    """A claim and what was found of it."""

    name: str
    statement: str
    paper: str
    source: str
    printed_metric: str | None
    metric: str | None
    """None where a cost is measured."""
    collection: str
    queries: int
    seeds: Sequence[int]
    smallest: float | None
    note: str | None
    arms: Sequence[Arm]
    contrasts: Sequence[Contrast | Cheaper]
    printed: Sequence[Sequence[float] | None]
    """Of each contrast, where the paper prints its two numbers."""
    verdict: Verdict


def study_part(title: str, description: str, claims: Sequence[Claimed]) -> str:
    """The part of the page about the study."""
    runs = {(run.facts.recipe, run.facts.seed): run for claim in claims for arm in claim.arms for run in arm.runs}
    return _template().render(
        title=title, description=description, lines=list(_lines(claims)),
        forest=FOREST if _differences(claims) else None,
        claims=[_claim(each) for each in claims], missing=_missing(claims), runs=list(_runs(list(runs.values()))),
        versions=_versions(list(runs.values())), counts=_counts(claims), brief=False,
    )  # fmt: skip


def study_brief(title: str, description: str, claims: Sequence[Claimed]) -> str:
    """The table of the claims that have a result, for the README; empty where none has."""
    lines = [line for line in _lines(claims) if line["verdict"] != "not reached"]
    if not lines:
        return ""
    return _template().render(title=title, description=description, lines=lines, counts=_counts(claims),
                                          brief=True)  # fmt: skip


def _template() -> Template:
    return template("study.md.j2", duration=duration, short=short)


def pictures(claims: Sequence[Claimed]) -> dict[str, str]:
    """The SVG files of the study, by name."""
    differences = _differences(claims)
    found = {FOREST: forest("Differences of the study's contrasts", differences)} if differences else {}
    return found | {
        curves_of(claim): curves(f"{claim.name}: what the trainings logged", panels)
        for claim in claims if (panels := _panels(claim))
    }  # fmt: skip


def curves_of(claim: Claimed) -> str:
    """The name of the picture of a claim's curves."""
    return f"study_{claim.name}.svg"


def _differences(claims: Sequence[Claimed]) -> list[Difference]:
    return [
        Difference(f"{claim.name}: {each.arm} − {each.than}", each.difference.value, each.low, each.high,
                   printed[0] - printed[1] if printed else None, each.verdict)
        for claim in claims for each, printed in zip(claim.contrasts, claim.printed, strict=True)
        if isinstance(each, Contrast) and each.difference and each.low is not None and each.high is not None
    ]  # fmt: skip


def _lines(claims: Sequence[Claimed]) -> Iterator[dict[str, Any]]:
    """A line for each contrast, the claim's words on its first."""
    for claim in claims:
        for number, (each, printed) in enumerate(zip(claim.contrasts, claim.printed, strict=True)):
            yield {
                "claim": claim.name, "statement": claim.statement, "first": number == 0, "arm": each.arm,
                "than": each.than, "source": f"{claim.paper}, {claim.source}", "p": _p(each),
                "ours": _measured(claim, each),
                "printed": f"{signed(printed[0] - printed[1])} {claim.printed_metric}" if printed else "–",
                "verdict": each.verdict, "words": _words(each), "note": claim.note is not None,
                "sizes": f"{claim.queries:,} × {len(claim.seeds)}" if claim.metric else f"– × {len(claim.seeds)}",
            }  # fmt: skip


def _measured(claim: Claimed, each: Contrast | Cheaper) -> str:
    """What was measured, and by what."""
    return "–" if each.verdict == "not reached" else f"{_ours(each)} {claim.metric or 'CPU seconds of a step'}"


def _ours(each: Contrast | Cheaper) -> str:
    if isinstance(each, Cheaper):
        return "–" if each.ratio is None else f"× {each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]"
    if each.difference is None or each.low is None or each.high is None:
        return "–"
    return f"{signed(each.difference.value)} [{signed(each.low)}, {signed(each.high)}]"


def _p(each: Contrast | Cheaper) -> str:
    return _told(each.p_holm).removeprefix("= ") if isinstance(each, Contrast) else "–"


def _words(each: Contrast | Cheaper) -> str:
    """The verdict, with what could have been shown where nothing was."""
    shown = each.shown if isinstance(each, Contrast) and each.verdict == "does not show" else None
    return f"**{each.verdict}**" if shown is None else f"does not show; {shown:.3f} could have been shown"


def _counts(claims: Sequence[Claimed]) -> str:
    """How many claims have which verdict."""
    kinds: dict[Verdict, str] = {"holds": "hold", "does not show": "do not show", "contradicts": "are contradicted",
                                 "not reached": "are not reached"}  # fmt: skip
    number = {kind: sum(claim.verdict == kind for claim in claims) for kind in kinds}
    return f"Of {len(claims)} claims " + ", ".join(f"{number[kind]} {words}" for kind, words in kinds.items())


def _missing(claims: Sequence[Claimed]) -> list[str]:
    """The runs that are missing, each once, in the study's order."""
    return list(dict.fromkeys(words for claim in claims for each in claim.contrasts for words in each.missing))


def _claim(claim: Claimed) -> dict[str, Any]:
    return {
        "told": claim, "curves": curves_of(claim) if _panels(claim) else None,
        "arms": [_arm(arm, claim) for arm in claim.arms if arm.runs],
        "contrasts": [_contrast(each) for each in claim.contrasts if not each.missing],
    }  # fmt: skip


def _arm(arm: Arm, claim: Claimed) -> dict[str, Any]:
    """An arm's number for each seed: a metric's mean, or the CPU seconds of a step."""
    by_seed = {run.facts.seed: _value(run, arm.row, claim.metric) for run in arm.runs}
    values = [value for value in by_seed.values() if value is not None]
    return {
        "name": arm.name, "words": arm.words, "mean": sum(values) / len(values) if values else None,
        "values": [by_seed.get(seed) for seed in claim.seeds],
        "pretraining": next((run.facts.pretraining for run in arm.runs), {}),
    }  # fmt: skip


def _value(run: StudyRun, row: str | None, metric: str | None) -> float | None:
    if row is None or metric is None:
        return run.facts.pretraining.get("cpu_seconds")
    found = run.measured(row, metric)
    return None if found is None else float(found[1].mean())


def _contrast(each: Contrast | Cheaper) -> dict[str, Any]:
    if isinstance(each, Cheaper):
        return {"told": each, "ours": _ours(each), "words": _words(each), "cost": True}
    return {
        "told": each, "ours": _ours(each), "words": _words(each), "cost": False,
        "p": _told(each.p), "p_holm": _told(each.p_holm),
        "p_randomisation": _told(each.p_randomisation), "p_seeds": _told(each.p_seeds),
        "by_seed": ", ".join(signed(value) for value in each.by_seed),
    }  # fmt: skip


def _told(p: float | None) -> str:
    return "–" if p is None else probability(p)


def _runs(runs: Sequence[StudyRun]) -> Iterator[dict[str, Any]]:
    """What each run took: a stage that several share counts for the first of them."""
    counted: set[tuple[str, str]] = set()
    for run in runs:
        own = [stage for stage in run.stages if (stage["stage"], stage["key"]) not in counted]
        counted |= {(stage["stage"], stage["key"]) for stage in own}
        machines = dict.fromkeys(f"{stage['device']}, {stage['cores']} cores" for stage in run.stages)
        yield {
            "facts": run.facts, "at": max(stage["at"] for stage in run.stages)[:10], "machine": "; ".join(machines),
            "cpu": sum(stage["cpu_seconds"] for stage in own), "stages": len(run.stages), "own": len(own),
            "file": f"{run.folder.parent.name}/{run.folder.name}",
        }  # fmt: skip


def _versions(runs: Sequence[StudyRun]) -> list[str]:
    """Every set of packages that runs were made with."""
    return list(dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(run.facts.versions.items())) for run in runs
    ))  # fmt: skip


def _panels(claim: Claimed) -> dict[str, dict[str, Curve]]:
    """What the arms' trainings logged, by panel and arm, the mean over the seeds."""
    found = {
        panel: {arm.name: line for arm in claim.arms if (line := _line(arm.runs, *of))} for panel, of in PANELS.items()
    }
    found[FINE_TUNING] = {arm.name: line for arm in claim.arms if (line := _fine_tuning(arm))}
    return {panel: lines for panel, lines in found.items() if lines}


def _fine_tuning(arm: Arm) -> Curve:
    """The contrastive loss of the training that an arm's row is of, which the row's name begins with.

    Of a view's row it is the view's, else the sum of all; none where a row is of several trainings.
    """
    if arm.row is None or not arm.runs:
        return []
    table = arm.runs[0].curves
    named = sorted(set(zip(table["training"].to_pylist(), table["name"].to_pylist(), strict=True)))
    of = next((training for training, _ in named if _trained(arm.row, training)), None)
    losses = [name for training, name in named if training == of and name.startswith("contrast")]
    own = [name for name in losses if arm.row == f"{of}_{name.removeprefix('contrast_')}"]
    lines = [_line(arm.runs, of or "", name) for name in own or losses]
    return [(steps[0][0], sum(value for _, value in steps)) for steps in zip(*lines, strict=True)]


def _trained(row: str, training: str) -> bool:
    """Whether a row is of a training: the training's own, a view's (`NAME_dense`), or several samples' (`NAME_0`)."""
    return row == training or row.startswith(f"{training}_") or training.startswith(f"{row}_")


def _line(runs: Sequence[StudyRun], training: str, name: str) -> Curve:
    """A curve, the mean over runs; of equal trainings the steps are equal."""
    lines = []
    for run in runs:
        table = run.curves
        chosen = table.filter(pc.and_(pc.equal(table["training"], training), pc.equal(table["name"], name)))
        lines.append(list(zip(chosen["step"].to_pylist(), chosen["value"].to_pylist(), strict=True)))
    return [
        (steps[0][0], sum(value for _, value in steps) / len(steps))
        for steps in zip(*lines, strict=False) if steps
    ]  # fmt: skip
