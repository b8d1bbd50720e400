"""The chain of a corpus of pseudo-queries: from documents to pseudo-queries and their quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.chain.pretraining import pretraining_spans, retrieved_passages
from flows.chain.pseudo_queries import PseudoQueryGenerators
from flows.chain.rankers import Bm25System
from flows.chain.training_examples import judged_examples
from flows.recipe.replacement import NO_QUERIES
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries


@dataclass(frozen=True)
class PseudoQueryCorpus:
    """Passages, their pseudo-queries, and the queries' quality."""

    passages: Artifact[Passages]
    queries: Artifact[PseudoQueries]
    quality: Artifact[Any]


def corpus(recipe: Recipe[Any], store: Store) -> PseudoQueryCorpus:
    """Return the passages that the recipe generates queries for, with their queries."""
    generators, passages = generators_of(recipe, store)
    queries = generators.generate(passages)
    return PseudoQueryCorpus(passages, queries, generators.quality(passages, queries))


def generators_of(recipe: Recipe[Any], store: Store) -> tuple[PseudoQueryGenerators, Artifact[Passages]]:
    """Return the recipe's generators, and the passages that they generate for.

    These are the spans that are pre-trained on or, where pre-training uses no pseudo-queries, what is retrieved.
    """
    if recipe.queries is None:
        raise UserError(NO_QUERIES)
    retrieved, examples = retrieved_passages(recipe), None
    if recipe.queries.train is not None and recipe.dataset.train_split is not None:
        bm25 = Bm25System(recipe.bm25).on(retrieved, recipe.encode, recipe.index)
        examples = judged_examples(recipe, bm25)
    generators = PseudoQueryGenerators.of(recipe, store, examples, retrieved)
    return generators, pretraining_spans(recipe) if generators.are_for("pretrain") else retrieved
