"""Ranked lists of passages: engines return them, and `tasks.retrieval.search` writes them as a Run.

A passage is identified by its row in the Passages table. The order is that of trec_eval: by descending float32 score,
and ties by descending passage id, compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.row_index import PassageIndex

Indices = NDArray[np.int64]


class Hits(NamedTuple):
    """The results of one query, best first."""

    rows: Indices
    scores: NDArray[np.float32]


Lookup = Callable[[Sequence[int], int], list[Hits]]
"""(indices of prepared queries, depth) -> each query's best `depth` passages in a Run's order, or all that match."""

Searcher = Callable[[Sequence[str]], Lookup]
"""An open index: it prepares a block of queries; a dense engine encodes them once."""


def in_order(ids: PassageIndex, rows: Indices, scores: NDArray[np.float32]) -> Hits:
    """Return these hits in a Run's order."""
    order = np.lexsort((ids.descending[rows], -scores))
    return Hits(rows[order], scores[order])


def first_documents(ids: PassageIndex, hits: Hits, documents: int) -> Hits:
    """Return the shortest prefix of the hits with `documents` different documents, or all hits if they have fewer."""
    _, first = np.unique(ids.documents[hits.rows], return_index=True)
    end = np.sort(first)[documents - 1] + 1 if len(first) >= documents else len(hits.rows)
    return Hits(hits.rows[:end], hits.scores[:end])


def num_documents(ids: PassageIndex, hits: Hits) -> int:
    """Return the number of different documents of the hits."""
    return len(np.unique(ids.documents[hits.rows]))


def run_rows(query_ids: Sequence[str], results: Sequence[Hits], ids: PassageIndex, view: str) -> pa.Table:
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
