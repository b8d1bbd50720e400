"""Two-stage search, which the approximate engines share: the engine proposes candidates, exact scores rank them.

A passage so has the same score for a query whichever engine retrieved it; only the choice of candidates is approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from storage.artifact import Artifact
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.tables import PseudoQueries, Vectors
from storage.vectors import Encoded, stored_views
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.ranking import Hits, Indices, Lookup, Searcher, in_order

EXTRA_CANDIDATES = 32  # beyond the depth: where scores tie at the end of a list, the engine may propose any of the ties
PAIRS_PER_BLOCK = 2**20  # of queries and candidates, in memory at a time

Propose = Callable[[Encoded, int], list[Indices]]
"""(queries, K) -> the rows of K candidates for each query, or fewer if the engine finds no more."""


def vectors_folder(
    vectors: Artifact[Vectors] | None, pseudo_queries: Artifact[PseudoQueries] | None, view: str
) -> Path:
    """Return the folder of the vectors to index. Raises UserError where the retriever does not have the view."""
    if vectors is None or pseudo_queries is not None:
        raise TypeError(f"an index of the {view} view needs vectors and reads no pseudo-queries")
    if view not in stored_views(vectors.path):
        raise UserError(
            f"index.engine: it indexes the {view} view, and the retriever has {', '.join(stored_views(vectors.path))};"
            " search with {engine: exact}"
        )
    return vectors.path


def two_stage_searcher(
    encode: Callable[[Sequence[str]], Encoded], propose: Propose, stored: StoredVectors, ids: PassageIndex, refine: int
) -> Searcher:
    """Return a searcher that ranks `refine` times as many candidates as a list holds, and EXTRA_CANDIDATES."""
    if len(stored) != len(ids):
        raise ValueError(f"{stored.folder} holds {len(stored)} passages' vectors, the passages are {len(ids)}")

    def searcher(texts: Sequence[str]) -> Lookup:
        encoded = encode(texts)

        def lookup(queries: Sequence[int], depth: int) -> list[Hits]:
            count = min(refine * depth + EXTRA_CANDIDATES, len(ids))
            step = max(1, PAIRS_PER_BLOCK // max(1, count))
            blocks = (encoded.taken(queries[start : start + step]) for start in range(0, len(queries), step))
            return [hits for block in blocks for hits in rank(stored, block, propose(block, count), depth, ids)]

        return lookup

    return searcher


def rank(
    stored: StoredVectors, queries: Encoded, candidates: list[Indices], depth: int, ids: PassageIndex
) -> list[Hits]:
    """Return each query's `depth` candidates with the highest exact scores."""
    counts = [len(rows) for rows in candidates]
    rows = np.concatenate([np.zeros(0, np.int64), *candidates])
    scores = stored.scores(queries, np.repeat(np.arange(len(queries)), counts), rows)
    ends = np.cumsum(counts)[:-1]
    ranked = (in_order(ids, *pair) for pair in zip(np.split(rows, ends), np.split(scores, ends), strict=True))
    return [Hits(hits.rows[:depth], hits.scores[:depth]) for hits in ranked]
