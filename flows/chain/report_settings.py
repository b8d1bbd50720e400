"""What a report says of a recipe beside the numbers: what each run is, and which runs it has not."""

from __future__ import annotations

from typing import Any

from flows.chain.transfer import groups
from flows.recipe.round_schema import Round, exact_run, expanded, view_run
from flows.recipe.schema import Recipe, as_yaml
from tasks.report.report import Reporting


def reporting(recipe: Recipe[Any], name: str, runs: list[str], trained: list[str], stored: list[str]) -> Reporting:
    """What the report says beside the numbers."""
    absent = {}
    if "bm25_doc2query" not in runs:
        absent["bm25_doc2query"] = "no pseudo-queries are made for retrieval, so no passage was expanded"
    return Reporting(
        recipe=name, title=recipe.title, paper=recipe.pretrain.paper if recipe.pretrain else "none",
        dataset=recipe.dataset.description,
        generator=recipe.queries.generator if recipe.queries else None, text=as_yaml(recipe),
        runs=meanings(recipe, runs),
        absent=absent, main=recipe.headline.run, baseline=recipe.headline.baseline, metric=recipe.headline.metric,
        reported=recipe.reported, trained=trained, stored=stored,
        views={each.name: [view_run(each.name, view) for view in each.rows] for each in expanded(recipe.rounds)},
        groups=groups(recipe),
    )  # fmt: skip


def meanings(recipe: Recipe[Any], runs: list[str]) -> dict[str, str]:
    """What each row is, in a sentence."""
    found = {
        "bm25": f"Lucene's BM25 (k1 {recipe.bm25.k1}, b {recipe.bm25.b}) over the passages",
        "teacher": f"the cross-encoder's order of the first passages of {recipe.teacher.reranks}"
        if recipe.teacher
        else "",
    }
    if recipe.queries:
        written = f"with their pseudo-queries appended, written by {recipe.queries.generator}"
        found["bm25_doc2query"] = f"BM25 over the passages {written}"
    for each in expanded(recipe.rounds):
        found[each.name] = trained(each)
        found |= {view_run(each.name, view): f"{each.name} by its {view} view alone" for view in each.rows}
    for ensemble in recipe.fusions:
        members = ", ".join(ensemble.members)
        found[ensemble.name] = f"{members}, fused by {ensemble.fuse.kind}"
    for quick in recipe.approximate:
        found[quick.name] = f"{exact_run(recipe.rounds, quick)} through {quick.index.engine}, an approximate index"
    for each in recipe.rounds:
        if each.is_few_shot:
            found[each.name] = (
                f"mean over {len(each.queries.samples)} samples of {each.queries.queries:,} train queries"
            )
    return {run: found[run] for run in runs}


def trained(each: Round) -> str:
    """What a round's retriever is."""
    starts = {
        "pretrained": "the pre-trained checkpoint", "backbone": "the backbone's weights, without the pre-training",
        "random": "random weights, without the pre-training",
    }  # fmt: skip
    views, start = " + ".join(each.views), starts.get(each.start, each.start)
    if each.train is None:
        return f"{views} bi-encoder: {start}, as it is"
    taught = ", distilled from the cross-encoder" if each.train.distillation else ""
    negatives = f"negatives mined by {each.mine_with}" if each.mine else "negatives of a file"
    return f"{views} bi-encoder, from {start}, with {negatives}{taught}"
