"""The changes that turn a recipe into its rehearsal: synthetic data, tiny models, two training steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.recipe.few_steps import NEW_TOKENS, few_steps
from flows.recipe.round_schema import Round, Teacher
from flows.recipe.schema import STARTS, Recipe

MOST_ROWS, WIDTH, SHARED_LAYERS = 64, 16, 1
COLLECTION, ENCODER, GENERATOR, CROSS_ENCODER = "collection", "encoder", "generator", "cross_encoder"
TOKENIZER, NEGATIVES, SUITE = "tokenizer", "negatives.jsonl", "suite.yaml"


def changes_for(recipe: Recipe[Any], folder: Path) -> list[str]:
    """Return the changes, as `--set` takes them; `folder` has the collection, the models and the suite."""
    changes = [
        "dataset.reader=beir", f"dataset.path={folder / COLLECTION}", "dataset.complete=false", "dataset.fraction=null",
        "corpora.pretrain_from=null", f"backbone.weights={folder / ENCODER}", "backbone.layers=null",
        "backbone.vocabulary=null", "backbone.start=weights", "backbone.pooling=cls", "encode.precision=null",
        "reported={}",
    ]  # fmt: skip
    kept = [analysis for analysis in recipe.analyses if not hasattr(analysis, "weights")]
    if len(kept) < len(recipe.analyses):
        changes.append("analyses=[]")
    if recipe.queries is not None:
        changes += [f"queries.model={folder / GENERATOR}", "queries.train=null"]
        changes += [f"queries.generate.max_new_tokens={NEW_TOKENS}", "queries.generate.dtype=auto"]
    changes += few_steps(recipe, MOST_ROWS)
    if recipe.pretrain is not None:
        changes.append("pretrain.fit.precision=null")
    if recipe.teacher is not None:
        changes += [f"teacher.{change}" for change in _of_teacher(recipe.teacher, folder)]
    if recipe.transfer is not None:
        changes.append(f"transfer.suite={folder / SUITE}")
    starts = (*STARTS, *(round_.name for round_ in recipe.rounds))
    for number, round_ in enumerate(recipe.rounds):
        changes += [f"rounds.{number}.{change}" for change in _of_round(round_, starts, folder)]
    return changes


def _of_teacher(teacher: Teacher, folder: Path) -> Iterator[str]:
    """Yield the changes of a teacher, of which all pairs are scored after one epoch."""
    yield f"weights={folder / CROSS_ENCODER}"
    yield "score.precision=null"
    yield "rerank.precision=null"
    if teacher.train is not None:
        yield "train.fit.precision=null"


def _of_round(round_: Round, starts: tuple[str, ...], folder: Path) -> Iterator[str]:
    if round_.start not in starts:
        yield f"start={folder / ENCODER}"
    if round_.given is not None:
        yield f"given.file={folder / NEGATIVES}"
    if round_.train is None:
        return
    yield "train.fit.precision=null"
    retriever = round_.train.retriever
    if retriever.shared_layers is not None:
        yield f"train.retriever.shared_layers={SHARED_LAYERS}"
    for view in ("dense", "late"):
        part = getattr(retriever, view)
        if part is not None and part.dim is not None:
            yield f"train.retriever.{view}.dim={WIDTH}"
