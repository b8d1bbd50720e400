"""The report of a recipe: its inputs by name, and what it says of each ranking in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.chain.evaluation import SplitResults
from flows.chain.transfer import groups
from flows.recipe.round_schema import FewShotQueries, Round, exact_run, expanded, truncated_run, view_run
from flows.recipe.schema import Recipe, as_yaml
from storage.artifact import Artifact
from storage.tables import Analysis, Checkpoint, Metrics, Overlap, Report
from tasks.report.report import Reporting, report

INITIAL = {
    "pretrained": "the pre-trained checkpoint", "backbone": "the backbone's weights, without the pre-training",
    "random": "random weights, without the pre-training",
}  # fmt: skip


@dataclass(frozen=True)
class ReportInputs:
    """The artifacts that a report is about."""

    splits: Sequence[SplitResults]
    """The headline's split first."""
    query_quality: Artifact[Any] | None
    """The quality of the pseudo-queries of what is pre-trained on."""
    overlaps: Sequence[Artifact[Overlap]]
    checkpoints: Mapping[str, Artifact[Checkpoint]]
    """The trained checkpoints, whose losses are shown, by name."""
    stored: Mapping[str, Artifact[Any]]
    """The indexes and vectors whose sizes are shown, by the name of their ranking."""
    wins: Artifact[Analysis] | None
    analyses: Sequence[Artifact[Analysis]]
    transfer: Sequence[Artifact[Metrics]]
    """The metrics on other collections."""


def build_report(recipe: Recipe[Any], name: str, inputs: ReportInputs) -> Artifact[Report]:
    """Build the report of the recipe `name`.

    The stage takes lists of artifacts and, in its settings, lists of their names in the same order. Its key depends on
    both, so only this function combines names and artifacts.
    """
    first = inputs.splits[0]
    means = [round_.name for round_ in recipe.rounds if round_.is_few_shot]
    return report(
        metrics=[results.metrics for results in inputs.splits], queries=first.topics.queries,
        quality=inputs.query_quality, agreements=inputs.overlaps, checkpoints=list(inputs.checkpoints.values()),
        stored=list(inputs.stored.values()), wins=inputs.wins, analyses=inputs.analyses, transfer=inputs.transfer,
        settings=report_settings(recipe, name, [*first.runs, *means], list(inputs.checkpoints), list(inputs.stored)),
    )  # fmt: skip


def report_settings(
    recipe: Recipe[Any], name: str, runs: list[str], trained: list[str], stored: list[str]
) -> Reporting:
    """Return what the report says besides numbers, from the names of runs, checkpoints, and stored vectors."""
    absent = {}
    if "bm25_doc2query" not in runs:
        absent["bm25_doc2query"] = "no pseudo-queries are made for retrieval, so no passage was expanded"
    return Reporting(
        recipe=name, title=recipe.title, fast=recipe.fast, paper=recipe.pretrain.paper if recipe.pretrain else "none",
        dataset=recipe.dataset.description,
        generator=recipe.queries.generator if recipe.queries else None, text=as_yaml(recipe),
        runs=descriptions(recipe, runs),
        absent=absent, main=recipe.headline.run, baseline=recipe.headline.baseline, metric=recipe.headline.metric,
        reported=recipe.reported, trained=trained, stored=stored,
        views={
            round_.name: [view_run(round_.name, view) for view in round_.rows] for round_ in expanded(recipe.rounds)
        },
        groups=groups(recipe), claims=recipe.claims,
    )  # fmt: skip


def descriptions(recipe: Recipe[Any], runs: list[str]) -> dict[str, str]:
    """Return what each run is, in a sentence. (The report's key depends on the words.)"""
    sentences = {"bm25": f"Lucene's BM25 (k1 {recipe.bm25.k1}, b {recipe.bm25.b}) over the passages"}
    sentences["bm25_without_titles"] = f"{sentences['bm25']} without their titles"
    if recipe.teacher:
        sentences["teacher"] = f"the cross-encoder's order of the first passages of {recipe.teacher.reranks}"
    if recipe.queries:
        generated = f"with their pseudo-queries appended, written by {recipe.queries.generator}"
        sentences["bm25_doc2query"] = f"BM25 over the passages {generated}"
    for round_ in expanded(recipe.rounds):
        sentences[round_.name] = retriever_description(round_)
        sentences |= {view_run(round_.name, view): f"{round_.name} by its {view} view alone" for view in round_.rows}
        sentences |= {
            truncated_run(round_.name, dim): f"{round_.name} by the first {dim:,} dimensions of its vectors"
            for dim in round_.truncate_dims
        }
    for ensemble in recipe.fusions:
        sentences[ensemble.name] = f"{', '.join(ensemble.members)}, fused by {ensemble.fuse.kind}"
    for approximate in recipe.approximate:
        exact, engine = exact_run(recipe.rounds, approximate), approximate.index.engine
        sentences[approximate.name] = f"{exact} through {engine}, an approximate index"
    for round_ in recipe.rounds:
        if isinstance(few := round_.queries, FewShotQueries):
            sentences[round_.name] = f"mean over {len(few.samples)} samples of {few.queries:,} train queries"
    return {run: sentences[run] for run in runs}


def retriever_description(round_: Round) -> str:
    """Return what a round's retriever is."""
    views, start = " + ".join(round_.views), INITIAL.get(round_.start, round_.start)
    if round_.train is None:
        return f"{views} bi-encoder: {start}, as it is"
    distilled = ", distilled from the cross-encoder" if round_.train.distillation else ""
    negatives = f"negatives mined by {round_.mine_with}" if round_.mine else "negatives of a file"
    return f"{views} bi-encoder, from {start}, with {negatives}{distilled}"
