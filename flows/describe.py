"""What a report says of a recipe beside the numbers: what each run is, and which runs it has not."""

from __future__ import annotations

from typing import Any

from flows.recipe import Recipe, as_yaml
from tasks.report import Reporting


def reporting(recipe: Recipe[Any], name: str, runs: list[str], trained: list[str]) -> Reporting:
    """What the report says beside the numbers."""
    absent = {}
    if "bm25_doc2query" not in runs:
        absent["bm25_doc2query"] = "no pseudo-queries are made for retrieval, so no passage was expanded"
    return Reporting(
        recipe=name, title=recipe.title, paper=recipe.pretrain.paper, dataset=recipe.dataset.description,
        generator=recipe.queries.generator if recipe.queries else None, text=as_yaml(recipe),
        runs={run: meaning(recipe, run) for run in runs},
        absent=absent, main=recipe.headline.run, baseline=recipe.headline.baseline, metric=recipe.headline.metric,
        reported=recipe.reported, trained=trained,
    )  # fmt: skip


def meaning(recipe: Recipe[Any], run: str) -> str:
    """What a run is, in a sentence."""
    if run == "bm25":
        return f"Lucene's BM25 (k1 {recipe.bm25.k1}, b {recipe.bm25.b}) over the passages"
    if run == "bm25_doc2query" and recipe.queries:
        return f"BM25 over the passages with their pseudo-queries appended, written by {recipe.queries.generator}"
    each = next(one for one in recipe.rounds if one.name == run)
    starts = {
        "pretrained": "the pre-trained checkpoint", "backbone": "the backbone's weights, without the pre-training",
        "random": "random weights, without the pre-training",
    }  # fmt: skip
    return f"bi-encoder, from {starts.get(each.start, each.start)}, with negatives mined by {each.mine_with}"
