"""The changes that turn a recipe into its rehearsal: synthetic data, tiny models, two training steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.recipe.schema import Recipe
from storage.errors import UserError

STEPS, MOST_ROWS, MOST_QUERIES, NEW_TOKENS, WIDTH, SHARED_LAYERS = 2, 64, 8, 8, 16, 1
COLLECTION, ENCODER, GENERATOR = "collection", "encoder", "generator"


def changes_for(recipe: Recipe[Any], folder: Path) -> list[str]:
    """Return the changes, as `--set` takes them; `folder` has the collection and the models.

    Raises UserError for recipes with parts that no tiny model can take.
    """
    if recipe.teacher is not None or recipe.transfer is not None:
        raise UserError("a recipe with a teacher or with transfer cannot be rehearsed yet; rehearse one without")
    changes = [
        "dataset.reader=beir", f"dataset.path={folder / COLLECTION}", "dataset.complete=false", "dataset.fraction=null",
        "corpora.pretrain_from=null", f"backbone.weights={folder / ENCODER}", "backbone.layers=null",
        "backbone.vocabulary=null",
        "backbone.start=weights", "backbone.pooling=cls", "reported={}",
    ]  # fmt: skip
    kept = [analysis for analysis in recipe.analyses if not hasattr(analysis, "weights")]
    if len(kept) < len(recipe.analyses):
        changes.append("analyses=[]")
    if recipe.queries is not None:
        changes += [f"queries.model={folder / GENERATOR}", "queries.train=null"]
        changes.append(f"queries.generate.max_new_tokens={NEW_TOKENS}")
    if recipe.pretrain is not None:
        rows = min(recipe.pretrain.batch, MOST_ROWS)
        changes += [f"pretrain.steps={STEPS}", "pretrain.epochs=null", f"pretrain.batch={rows}", "pretrain.probe=null"]
    for number, round_ in enumerate(recipe.rounds):
        changes += [f"rounds.{number}.{change}" for change in _of_round(round_)]
    return changes


def _of_round(round_: Any) -> Iterator[str]:
    if round_.train is None:
        return
    yield f"train.steps={STEPS}"
    yield "train.epochs=null"
    yield f"train.batch_queries={min(round_.train.batch_queries, MOST_QUERIES)}"
    retriever = round_.train.retriever
    if retriever.shared_layers is not None:
        yield f"train.retriever.shared_layers={SHARED_LAYERS}"
    for view in ("dense", "late"):
        part = getattr(retriever, view)
        if part is not None and part.dim is not None:
            yield f"train.retriever.{view}.dim={WIDTH}"
