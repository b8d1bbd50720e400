"""The examples of each training step of a retriever or a cross-encoder: queries, one positive each, hard negatives.

The positive and the negatives of a query rotate with the epochs, so that all of them are used. A step depends only on
its number and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import RowIndex
from storage.rows import read_table
from storage.tables import Negatives, Passages, Positives, Queries
from tasks.retrieval.shared_passages import Corpus
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
class Lists:
    """A list of passages for each query."""

    offsets: RowNumbers
    passage_rows: RowNumbers

    def __getitem__(self, query: int) -> RowNumbers:
        return self.passage_rows[self.offsets[query] : self.offsets[query + 1]]

    @staticmethod
    def of(queries: RowNumbers, passage_rows: RowNumbers, num_queries: int) -> Lists:
        """Return the lists of pairs of a query number and a passage row; the order within a query is kept."""
        order = np.argsort(queries, kind="stable")
        offsets = np.searchsorted(queries[order], np.arange(num_queries + 1))
        return Lists(offsets, passage_rows[order])


@dataclass(frozen=True)
class TrainingData:
    """The queries, passages and labels from which the examples of every step are taken."""

    corpus: Corpus
    query_index: RowIndex
    queries: Sequence[str]
    """The texts of the queries that have a positive."""
    positives: Lists
    """Each query's, in the order of the table."""
    negatives: Lists
    """Each query's, in the order of their rank."""
    settings: ExampleSettings

    @staticmethod
    def read(
        queries: Artifact[Queries], corpus: Corpus, positives: Artifact[Positives],
        negatives: Artifact[Negatives], settings: ExampleSettings, *, mined_only: bool = False,
    ) -> TrainingData:  # fmt: skip
        """Read the queries that have a positive (with `mined_only`, also negatives).

        Raises UserError if no query is left, or if a label names a passage that is not in the corpus.
        """
        names = ["query_id", "passage_id"]
        relevant, hard = read_table(positives, Positives, names), read_table(negatives, Negatives, names)
        topics = read_table(queries, Queries)
        topics = topics.filter(pc.is_in(topics["query_id"], value_set=relevant["query_id"].combine_chunks()))
        if mined_only:
            topics = topics.filter(pc.is_in(topics["query_id"], value_set=hard["query_id"].combine_chunks()))
        if not len(topics):
            wanted = "a positive passage and negatives" if mined_only else "a positive passage"
            raise UserError(f"{queries.reference}: none of its queries has {wanted}; training needs some")
        query_index = RowIndex(topics["query_id"])
        lists: list[Lists] = []
        for rows, reference in ((relevant, positives.reference), (hard, negatives.reference)):
            query_rows = query_index.rows(rows["query_id"])
            passage_ids = rows["passage_id"].filter(pa.array(query_rows >= 0))
            passage_rows = corpus.index.require(passage_ids, partial(missing_passage, reference, corpus.passages))
            lists.append(Lists.of(query_rows[query_rows >= 0], passage_rows, len(topics)))
        return TrainingData(corpus, query_index, topics["text"].to_pylist(), lists[0], lists[1], settings)

    def examples(self, step: int) -> tuple[list[int], list[int]]:
        """Return the query numbers of a step, and the rows of their passages: group by group, the positive first."""
        query_numbers = rows_of_step(step, self.settings.batch_queries, len(self.queries), self.settings.seed)
        passages: list[int] = []
        for number, query in enumerate(query_numbers):
            epoch = (step * self.settings.batch_queries + number) // len(self.queries)
            positives = self.positives[query]
            passages += [int(positives[epoch % len(positives)]), *self.negatives_of(query, epoch)]
        return query_numbers, passages

    def negatives_of(self, query: int, epoch: int) -> list[int]:
        """Return the rows of a query's negatives in an epoch.

        They are the next ones of its mined list, which starts again after its end; a query without mined negatives has
        random passages of the corpus that are not of a relevant document.
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


def missing_passage(labels: str, passages: Artifact[Passages], passage_id: str) -> UserError:
    """Return the error of labels that name a passage which the passages lack."""
    return UserError(f"{labels}: passage {passage_id!r} is not among {passages.reference}; build it again")
