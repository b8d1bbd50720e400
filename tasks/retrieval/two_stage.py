"""What approximate engines share: they propose more passages than are asked for, and the best of these are listed.

The scores are exact, so that a passage has one score for a query whichever engine found it; what is approximate is
which passages are among the proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import PseudoQueries, Vectors
from storage.vectors import Encoded, stored_views
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.ranking import Hits, Indices, Lookup, PassageIds, Searcher

BESIDES = 32  # proposals beyond those asked for: where scores tie at the end of a list, any of the tied is proposed
PAIRS = 2**20  # of queries and proposals, that are held at once

Propose = Callable[[Encoded, int], list[Indices]]
"""(queries, how many) -> for each query the places of so many passages, or of all that it finds."""


def folder_of(vectors: Artifact[Vectors] | None, pseudo_queries: Artifact[PseudoQueries] | None, view: str) -> Path:
    """Where the vectors lie of which a view is to be indexed."""
    if vectors is None or pseudo_queries is not None:
        raise TypeError(f"an index of the {view} view needs vectors and reads no pseudo-queries")
    if view not in stored_views(vectors.path):
        raise UserError(
            f"index.engine: it indexes the {view} view, and the retriever has {', '.join(stored_views(vectors.path))};"
            " search with {engine: exact}"
        )
    return vectors.path


def searcher(
    encode: Callable[[Sequence[str]], Encoded], propose: Propose, stored: StoredVectors, ids: PassageIds, refine: int
) -> Searcher:
    """List the best of `refine` times as many proposals as are asked for."""
    if len(stored) != len(ids):
        raise ValueError(f"{stored.folder} holds {len(stored)} passages' vectors, the passages are {len(ids)}")

    def prepared(texts: Sequence[str]) -> Lookup:
        encoded = encode(texts)

        def lookup(numbers: Sequence[int], depth: int) -> list[Hits]:
            count = min(refine * depth + BESIDES, len(ids))
            step = max(1, PAIRS // max(1, count))
            blocks = (encoded.taken(numbers[start : start + step]) for start in range(0, len(numbers), step))
            return [hits for block in blocks for hits in best(stored, block, propose(block, count), depth, ids)]

        return lookup

    return prepared


def best(stored: StoredVectors, queries: Encoded, proposed: list[Indices], depth: int, ids: PassageIds) -> list[Hits]:
    """For each query, of what is proposed to it, the `depth` passages that score highest."""
    counts = [len(places) for places in proposed]
    places = np.concatenate([np.zeros(0, np.int64), *proposed])
    scores = stored.scores(queries, np.repeat(np.arange(len(queries)), counts), places)
    ends = np.cumsum(counts)[:-1]
    found = (ids.in_order(*pair) for pair in zip(np.split(places, ends), np.split(scores, ends), strict=True))
    return [Hits(hits.rows[:depth], hits.scores[:depth]) for hits in found]
