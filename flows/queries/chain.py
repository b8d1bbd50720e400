"""The chain of a corpus: documents, passages, pseudo-queries, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.chain.chain import judged_examples, pretraining_passages, quality, split
from flows.chain.pseudo_queries import Writer
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.retrieval.index import index


@dataclass(frozen=True)
class Corpus:
    """Passages, their queries, and the queries' statistics."""

    passages: Artifact[Passages]
    queries: Artifact[PseudoQueries]
    quality: Artifact[Any]


def corpus(recipe: Recipe[Any], store: Store) -> Corpus:
    """Build the passages that the recipe generates queries for (those of the pre-training, if any), and the queries."""
    writer, passages = writer_of(recipe, store)
    queries = writer.write(passages)
    return Corpus(passages, queries, quality(recipe, passages, queries))


def writer_of(recipe: Recipe[Any], store: Store) -> tuple[Writer, Artifact[Passages]]:
    """Who writes, and of which passages."""
    if recipe.queries is None:
        raise UserError("queries: this recipe generates none; expected a section as in configs/quickstart.yaml")
    retrieved = split(recipe, recipe.corpora.retrieve)
    trains = recipe.queries.train is not None and recipe.dataset.train_split is not None
    bm25 = index(passages=retrieved, settings=recipe.bm25) if trains else None
    examples = judged_examples(recipe, retrieved, bm25) if bm25 else None
    writer = Writer.of(recipe, store, examples, retrieved)
    return writer, pretraining_passages(recipe) if writer.writes("pretrain") else retrieved
