"""What a retriever, or a cross-encoder, is shown at each step: queries, a positive of each, and hard negatives.

Which positive and which negatives a query shows rotates with the epochs, so that it sees all of them. A step draws
from its number and the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import in_one_chunk, read_table
from storage.tables import Negatives, Passages, Positives, Queries, passage_text
from tasks.training.epochs import visited

Places = NDArray[np.int64]
"""Passages by their number in the table."""


class Drawing(Protocol):
    """The settings that say what a step shows."""

    @property
    def batch_queries(self) -> int: ...
    @property
    def passages_per_query(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Lists:
    """A list of passages for each query."""

    offsets: Places
    places: Places

    def __getitem__(self, query: int) -> Places:
        return self.places[self.offsets[query] : self.offsets[query + 1]]

    @staticmethod
    def of(queries: Places, places: Places, number: int) -> Lists:
        """Of pairs of query and passage, whose order within a query is kept; `number` queries in all."""
        order = np.argsort(queries, kind="stable")
        offsets = np.searchsorted(queries[order], np.arange(number + 1))
        return Lists(offsets, places[order])


@dataclass(frozen=True)
class TrainingData:
    """Everything a step draws from."""

    corpus: pa.Table
    """doc_id, title and text of the passages."""
    query_ids: pa.Array
    queries: Sequence[str]
    """Those that have a positive."""
    positives: Lists
    """Each query's, in the order of the table."""
    negatives: Lists
    """Each query's, in the order of their rank."""
    settings: Drawing

    @staticmethod
    def read(
        queries: Artifact[Queries], passages: Artifact[Passages], positives: Artifact[Positives],
        negatives: Artifact[Negatives], settings: Drawing, *, mined_only: bool = False,
    ) -> TrainingData:  # fmt: skip
        """Number the queries that have a positive (`mined_only`: and negatives), and the passages that take part."""
        corpus = in_one_chunk(read_table(passages, Passages, ["passage_id", "doc_id", "title", "text"]))
        names = ["query_id", "passage_id"]
        relevant, hard = read_table(positives, Positives, names), read_table(negatives, Negatives, names)
        asked = read_table(queries, Queries)
        asked = asked.filter(pc.is_in(asked["query_id"], value_set=relevant["query_id"].combine_chunks()))
        if mined_only:
            asked = asked.filter(pc.is_in(asked["query_id"], value_set=hard["query_id"].combine_chunks()))
        if not len(asked):
            wanted = "a positive passage and negatives" if mined_only else "a positive passage"
            raise UserError(f"{queries.reference}: none of its queries has {wanted}; training needs some")
        query_ids, passage_ids = asked["query_id"].combine_chunks(), corpus["passage_id"]
        lists: list[Lists] = []
        for rows, named in ((relevant, positives.reference), (hard, negatives.reference)):
            rows = rows.filter(pc.is_in(rows["query_id"], value_set=query_ids))
            places = pc.index_in(rows["passage_id"], value_set=passage_ids)
            if places.null_count:
                missing = rows["passage_id"].filter(places.is_null())[0].as_py()
                raise UserError(
                    f"{named}: passage {missing!r} is not among {passages.reference}; make them again of it"
                )
            of_query = pc.index_in(rows["query_id"], value_set=query_ids)
            lists.append(Lists.of(_numbers(of_query), _numbers(places), len(query_ids)))
        return TrainingData(corpus, query_ids, asked["text"].to_pylist(), lists[0], lists[1], settings)

    def shown(self, step: int) -> tuple[list[int], list[int]]:
        """The queries of a step, and their passages, one group after the other, the positive first."""
        chosen = visited(step, self.settings.batch_queries, len(self.queries), self.settings.seed)
        passages: list[int] = []
        for number, query in enumerate(chosen):
            epoch = (step * self.settings.batch_queries + number) // len(self.queries)
            own = self.positives[query]
            passages += [int(own[epoch % len(own)]), *self.window(query, epoch)]
        return chosen, passages

    def texts(self, places: Sequence[int]) -> list[str]:
        """What is read of passages."""
        rows = self.corpus.select(["title", "text"]).take(list(places)).to_pydict()
        return [passage_text(title, text) for title, text in zip(rows["title"], rows["text"], strict=True)]

    def documents(self, places: Sequence[int]) -> list[str]:
        """The documents of passages."""
        found: list[str] = self.corpus["doc_id"].take(list(places)).to_pylist()
        return found

    def window(self, query: int, epoch: int) -> list[int]:
        """The epoch's negatives of a query: the next of its list, around its end; of the corpus where it has none."""
        wanted, mined = self.settings.passages_per_query - 1, self.negatives[query]
        if len(mined):
            order = np.random.default_rng((self.settings.seed, query)).permutation(len(mined))
            turns = (epoch * wanted + np.arange(wanted)) % len(mined)
            return [int(place) for place in mined[order[turns]]]
        relevant = self.relevant(query)
        if wanted and len(relevant) == self.num_documents:
            raise UserError(
                f"query {self.queries[query]!r}: every document is relevant to it; leave it out of the qrels"
            )
        random = np.random.default_rng((self.settings.seed, query, epoch))
        drawn: list[int] = []
        while len(drawn) < wanted:
            passage = int(random.integers(len(self.corpus)))
            drawn += [] if self.documents([passage])[0] in relevant else [passage]
        return drawn

    def relevant(self, query: int) -> set[str]:
        """The documents of a query's positives."""
        return set(self.documents(self.positives[query].tolist()))

    @cached_property
    def num_documents(self) -> int:
        """Different documents of the corpus."""
        return int(pc.count_distinct(self.corpus["doc_id"]).as_py())


def _numbers(values: pa.ChunkedArray) -> Places:
    found: Places = values.to_numpy().astype(np.int64)
    return found
