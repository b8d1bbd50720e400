"""The examples that retrievers, teachers and query generators are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.chain import collection
from flows.chain.collection import SplitTopics
from flows.chain.rankers import IndexedBm25
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Passages, Positives, PseudoQueries, Qrels, Queries
from tasks.finetuning.label_positives import adopt_positives, adopt_pseudo_queries, label_passages


@dataclass(frozen=True)
class TrainingExamples:
    """Queries, and for each its relevant documents with a passage of each."""

    queries: Artifact[Queries]
    positives: Artifact[Positives]


def split_topics(recipe: Recipe[Any], split: str) -> SplitTopics:
    """Return the topics of a split of the recipe's collection."""
    training = split == recipe.dataset.train_split
    answers = any(metric.startswith(collection.ANSWER) for metric in recipe.evaluate.metrics)
    return collection.topics(recipe.dataset, recipe.corpora.retrieve, split, training=training, answers=answers)


def train_topics(recipe: Recipe[Any]) -> tuple[Artifact[Queries], Artifact[Qrels]]:
    """Return the queries and judgements of the train split. Raises UserError where it has no judgements."""
    topics = split_topics(recipe, recipe.dataset.train_split or "")
    if topics.qrels is None:
        raise UserError(f"dataset.train_split: {topics.split} of {recipe.dataset.reader} has no qrels to learn from")
    return topics.queries, topics.qrels


def judged_examples(recipe: Recipe[Any], bm25: IndexedBm25) -> TrainingExamples:
    """Return the train split's examples; a relevant document's positive is its passage that BM25 ranks highest."""
    queries, qrels = train_topics(recipe)
    ranked = bm25.rank(queries, recipe.train_documents)
    return TrainingExamples(queries, label_passages(qrels=qrels, passages=bm25.passages, bm25_run=ranked))


def pseudo_examples(passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> TrainingExamples:
    """Return examples for a collection without train queries: pseudo-queries, each with its passage."""
    return TrainingExamples(
        adopt_pseudo_queries(passages=passages, pseudo_queries=pseudo_queries),
        adopt_positives(passages=passages, pseudo_queries=pseudo_queries),
    )
