"""Ranked lists of passages: engines return them, and `tasks.retrieval.search` writes them as a Run.

A passage is identified by its row in the Passages table. The order is that of trec_eval: by descending float32 score,
and ties by descending passage id, compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.rows import read_table
from storage.tables import Passages

Indices = NDArray[np.int64]


class Hits(NamedTuple):
    """The results of one query, best first."""

    rows: Indices
    scores: NDArray[np.float32]


Lookup = Callable[[Sequence[int], int], list[Hits]]
"""(indices of prepared queries, depth) -> each query's best `depth` passages in a Run's order, or all that match."""

Searcher = Callable[[Sequence[str]], Lookup]
"""An open index: it prepares a block of queries; a dense engine encodes them once."""


@dataclass(frozen=True)
class PassageIds:
    """The ids and documents of all passages, by row."""

    ids: pa.ChunkedArray
    documents: NDArray[np.int32]
    """A number for each passage's document."""
    descending: Indices
    """The place of each passage in the descending order of ids; what breaks ties."""

    def __len__(self) -> int:
        return len(self.documents)

    def in_order(self, rows: Indices, scores: NDArray[np.float32]) -> Hits:
        """These hits in a Run's order."""
        order = np.lexsort((self.descending[rows], -scores))
        return Hits(rows[order], scores[order])

    def first_documents(self, hits: Hits, documents: int) -> Hits:
        """The shortest beginning of `hits` with `documents` different documents; all of it if it has no more."""
        _, first = np.unique(self.documents[hits.rows], return_index=True)
        end = np.sort(first)[documents - 1] + 1 if len(first) >= documents else len(hits.rows)
        return Hits(hits.rows[:end], hits.scores[:end])

    def num_documents(self, hits: Hits) -> int:
        """How many different documents the hits belong to."""
        return len(np.unique(self.documents[hits.rows]))


def passage_ids(passages: Artifact[Passages]) -> PassageIds:
    """Read the ids of all passages."""
    return numbered(read_table(passages, Passages, ["passage_id", "doc_id"]))


def numbered(rows: pa.Table) -> PassageIds:
    """Number the passages and documents of a table with `passage_id` and `doc_id`."""
    documents = rows["doc_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = pc.sort_indices(rows["passage_id"], sort_keys=[("", "descending")]).to_numpy()
    descending = np.empty(len(order), dtype=np.int64)
    descending[order] = np.arange(len(order))
    return PassageIds(rows["passage_id"], documents.astype(np.int32), descending)


def run_rows(query_ids: Sequence[str], results: Sequence[Hits], ids: PassageIds, view: str) -> pa.Table:
    """Return the hits of several queries as rows of a Run."""
    counts = np.array([len(hits.rows) for hits in results], dtype=np.int64)
    rows = np.concatenate([np.empty(0, np.int64), *(hits.rows for hits in results)])
    columns: dict[str, Any] = {
        "query_id": pa.array(query_ids, pa.string()).take(pa.array(np.repeat(np.arange(len(results)), counts))),
        "passage_id": ids.ids.take(pa.array(rows)),
        "view": pa.repeat(pa.scalar(view), len(rows)),
        "rank": ranges(np.ones_like(counts), counts),
        "score": np.concatenate([np.empty(0, np.float32), *(hits.scores for hits in results)]),
    }
    return pa.table(columns)


def ranges(starts: Indices, counts: Indices) -> Indices:
    """Return start, start + 1, ... of each range, with `counts` numbers each, one range after the other."""
    numbers: Indices = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return numbers
