"""The examples of each training step of a retriever or a cross-encoder: queries, one positive each, hard negatives.

The positive and the negatives of a query rotate with the epochs, so that all of them are used. A step depends only on
its number and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import RowIndex
from storage.rows import read_table, table_blocks
from storage.tables import Negatives, Passages, Positives, Queries, Table
from tasks.retrieval.shared_passages import PassagesWithTexts
from tasks.training.epochs import rows_of_step
from tasks.training.seeds import random_generator

RowNumbers = NDArray[np.int64]
"""Rows of the passage table."""


class ExampleSettings(Protocol):
    """The settings that define the examples of a step."""

    @property
    def batch_queries(self) -> int: ...
    @property
    def passages_per_query(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class PassageLists:
    """A list of passages for each query."""

    offsets: RowNumbers
    passage_rows: RowNumbers

    def __getitem__(self, query: int) -> RowNumbers:
        return self.passage_rows[self.offsets[query] : self.offsets[query + 1]]

    @staticmethod
    def read(labels: Artifact[Any], table: type[Table], queries: RowIndex, corpus: PassagesWithTexts) -> PassageLists:
        """Return the passages that a table names for each of these queries, in its order, with a block in memory."""
        query_rows, passage_rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in table_blocks(labels.path, table, ["query_id", "passage_id"]):
            rows = queries.rows(block["query_id"])
            passage_ids = block["passage_id"].filter(pa.array(rows >= 0))
            error = partial(missing_passage, labels.reference, corpus.passages)
            query_rows.append(rows[rows >= 0])
            passage_rows.append(corpus.index.require(passage_ids, error))
        numbers = np.concatenate(query_rows)
        order = np.argsort(numbers, kind="stable")
        offsets = np.searchsorted(numbers[order], np.arange(len(queries) + 1))
        return PassageLists(offsets, np.concatenate(passage_rows)[order])


@dataclass(frozen=True)
class TrainingData:
    """The queries, passages and labels from which the examples of every step are taken."""

    corpus: PassagesWithTexts
    query_index: RowIndex
    queries: Sequence[str]
    """The texts of the queries that have a positive."""
    positives: PassageLists
    """Each query's, in the order of the table."""
    negatives: PassageLists
    """Each query's, in the order of their rank."""
    settings: ExampleSettings

    @staticmethod
    def read(
        queries: Artifact[Queries], corpus: PassagesWithTexts, positives: Artifact[Positives],
        negatives: Artifact[Negatives], settings: ExampleSettings, *, mined_only: bool = False,
    ) -> TrainingData:  # fmt: skip
        """Read the queries that have a positive (with `mined_only`, also negatives).

        Raises UserError if no query is left, or if a label names a passage that is not in the corpus.
        """
        topics = _with_labels(read_table(queries, Queries), positives, Positives)
        if mined_only:
            topics = _with_labels(topics, negatives, Negatives)
        if not len(topics):
            wanted = "a positive passage and negatives" if mined_only else "a positive passage"
            raise UserError(f"{queries.reference}: none of its queries has {wanted}; training needs some")
        query_index = RowIndex(topics["query_id"])
        relevant = PassageLists.read(positives, Positives, query_index, corpus)
        hard = PassageLists.read(negatives, Negatives, query_index, corpus)
        return TrainingData(corpus, query_index, topics["text"].to_pylist(), relevant, hard, settings)

    def examples(self, step: int) -> tuple[list[int], list[int]]:
        """Return the query numbers of a step, and the rows of their passages: group by group, the positive first."""
        query_numbers = rows_of_step(step, self.settings.batch_queries, len(self.queries), self.settings.seed)
        passages: list[int] = []
        for number, query in enumerate(query_numbers):
            epoch = (step * self.settings.batch_queries + number) // len(self.queries)
            positives = self.positives[query]
            passages += [int(positives[epoch % len(positives)]), *self.negatives_of(query, epoch)]
        return query_numbers, passages

    def query_texts(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of queries."""
        return [self.queries[number] for number in numbers]

    def negatives_of(self, query: int, epoch: int) -> list[int]:
        """Return the rows of a query's negatives in an epoch.

        They are the next ones of a random permutation of its mined list, which depends on seed and query and starts
        again after its end; a query without mined negatives has random passages of the corpus that are not of a
        relevant document.
        """
        number, mined = self.settings.passages_per_query - 1, self.negatives[query]
        if len(mined):
            order = random_generator(self.settings.seed, query).permutation(len(mined))
            positions = (epoch * number + np.arange(number)) % len(mined)
            return [int(row) for row in mined[order[positions]]]
        relevant = self.relevant(query)
        if number and len(relevant) == len(self.corpus.index.doc_ids):
            raise UserError(
                f"query {self.queries[query]!r}: every document is relevant to it; leave it out of the qrels"
            )
        random = random_generator(self.settings.seed, query, epoch)
        negatives: list[int] = []
        while len(negatives) < number:
            passage = int(random.integers(len(self.corpus)))
            negatives += [] if self.corpus.documents([passage])[0] in relevant else [passage]
        return negatives

    def relevant(self, query: int) -> set[str]:
        """Return the ids of the documents of a query's positives."""
        return set(self.corpus.documents(self.positives[query].tolist()))


def _with_labels(queries: pa.Table, labels: Artifact[Any], table: type[Table]) -> pa.Table:
    """Return the queries that a table names."""
    index, is_labelled = RowIndex(queries["query_id"]), np.zeros(len(queries), bool)
    for block in table_blocks(labels.path, table, ["query_id"]):
        rows = index.rows(block["query_id"])
        is_labelled[rows[rows >= 0]] = True
    return queries.filter(pa.array(is_labelled))


def missing_passage(labels: str, passages: Artifact[Passages], passage_id: str) -> UserError:
    """Return the error of labels that name a passage which the passages lack."""
    return UserError(f"{labels}: passage {passage_id!r} is not among {passages.reference}; build it again")
