"""Exact search of stored vectors, by one view or the weighted sum of all: no index, every passage is compared.

1. Passages are read in tiles; each gets an upper bound of its score in single precision, on the run's device
   (`exact_search.upper_bounds`). The K passages with the greatest bounds are the candidates.
2. The first `depth` candidates are scored in double precision, then those whose bound is above the worst of these
   scores (`exact_search.double_scores`).
3. A passage that is no candidate scores at most the least bound of the candidates. So a list whose last score is above
   that bound is complete; for the others the search is repeated with more candidates and closer bounds.

So the lists are those of double precision, rounded to float32, with ties by passage id, whatever other queries are
searched in the same call and however memory is divided. Bounds and scores are compared as sort keys
(`exact_search.top_k`), which include the rank by id: at equal scores the comparison decides as the final order does.

Shape suffixes: Q queries, P passages of a tile, K candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.row_index import PassageIndex
from storage.rows import num_rows
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, describe_vectors
from tasks.retrieval.exact_search.double_scores import MEMORY_BYTES, StoredVectors, row_bytes
from tasks.retrieval.exact_search.top_k import NO_KEY, RANK_MASK, SortKeys, score_of, sort_keys, top_keys
from tasks.retrieval.exact_search.upper_bounds import upper_bounds
from tasks.retrieval.index import EngineSettings
from tasks.retrieval.ranking import Hits, Indices, Lookup, Searcher
from tasks.runtime.device import choose_device

VIEWS = ("dense", "lexical", "late", "sum")
EXTRA_CANDIDATES = 32  # beyond twice the depth: rounding may have put a better passage behind a worse one
CACHE_BYTES = 2**20  # of a tile's bounds on the CPU: they are selected from while they are in a core's cache
MIN_TILE = 512  # passages that make a matrix product worthwhile


class Exact(EngineSettings):
    """All passages are compared; no setting changes the results."""

    engine: Literal["exact"]


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Exact,
) -> None:
    """Check the inputs and write nothing: the vectors are searched as they are."""
    if vectors is None or pseudo_queries is not None:
        raise TypeError("exact search needs vectors and reads no pseudo-queries")
    if describe_vectors(vectors.path)["passages"] != num_rows(passages.path):
        raise ValueError(f"{vectors.path}: expected the vectors of the passages of {passages.path}")


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIndex,
    view: str,
) -> Searcher:
    """Return a searcher of one view of the vectors, or of the `sum` of all."""
    if vectors is None or encode is None:
        raise TypeError("exact search needs vectors and an encoder of queries")
    search = ExactSearch(StoredVectors(vectors.path, view), ids)

    def searcher(texts: Sequence[str]) -> Lookup:
        encoded = encode(texts)
        return lambda queries, depth: search(encoded.taken(queries), depth)

    return searcher


class ExactSearch:
    """Ranked lists of double precision over stored vectors."""

    def __init__(self, stored: StoredVectors, ids: PassageIndex) -> None:
        if len(stored) != len(ids):
            raise ValueError(f"{stored.folder} holds {len(stored)} passages' vectors, the passages are {len(ids)}")
        self.stored, self.ids, self.device = stored, ids, choose_device()
        self.ranks: Indices = ids.ranks  # by row: the greater rank comes first among ties
        self.rows: Indices = ids.rows_by_rank

    def __call__(self, queries: Encoded, depth: int) -> list[Hits]:
        """Return each query's `depth` best passages, or all if there are fewer."""
        results: dict[int, Hits] = {}
        pending = np.arange(len(queries))
        num_candidates, coarse = min(2 * depth + EXTRA_CANDIDATES, len(self.ids)), True
        while len(pending):
            step = max(1, MEMORY_BYTES // (32 * max(MIN_TILE, num_candidates) + row_bytes(queries)))
            for start in range(0, len(pending), step):
                block = pending[start : start + step]
                block_queries = queries.taken(block)
                bounds_QK = self._candidates(block_queries, num_candidates, coarse)
                for query, (hits, complete) in zip(block, self._lists(block_queries, bounds_QK, depth), strict=True):
                    if complete:
                        results[int(query)] = hits
            pending = np.array([query for query in pending if int(query) not in results], dtype=np.int64)
            num_candidates, coarse = min(4 * num_candidates, len(self.ids)), False
        return [results[query] for query in range(len(queries))]

    def _lists(self, queries: Encoded, bounds_QK: SortKeys, depth: int) -> Iterator[tuple[Hits, bool]]:
        """Yield each query's best candidates, and whether no other passage can belong to them.

        `bounds_QK` are the candidates' bounds as sort keys in descending order.
        """
        keys_QK, is_first_QK = np.full_like(bounds_QK, NO_KEY), np.zeros(bounds_QK.shape, bool)
        is_first_QK[:, :depth] = True
        keys_QK[is_first_QK] = self._score(queries, bounds_QK, is_first_QK)
        if bounds_QK.shape[1] > depth:
            is_close_QK = ~is_first_QK & (bounds_QK >= keys_QK[:, :depth].min(axis=1, keepdims=True))
            keys_QK[is_close_QK] = self._score(queries, bounds_QK, is_close_QK)
        best_QK = np.sort(keys_QK)[:, ::-1][:, :depth]
        scores_QK, rows_QK = score_of(torch.from_numpy(best_QK.copy())).numpy(), self.rows[best_QK & RANK_MASK]
        all_are_candidates = bounds_QK.shape[1] == len(self.ids)
        for bounds, keys, rows, scores in zip(bounds_QK, best_QK, rows_QK, scores_QK, strict=True):
            yield Hits(rows, scores), all_are_candidates or bool(keys[-1] >= bounds[-1])

    def _score(self, queries: Encoded, bounds_QK: SortKeys, is_chosen_QK: NDArray[np.bool_]) -> SortKeys:
        """Return the sort keys of the chosen candidates' scores in double precision."""
        ranks = bounds_QK[is_chosen_QK] & RANK_MASK
        scores = self.stored.scores(queries, is_chosen_QK.nonzero()[0], self.rows[ranks])
        keys: SortKeys = sort_keys(torch.from_numpy(scores), torch.from_numpy(ranks)).numpy()
        return keys

    @torch.inference_mode()
    def _candidates(self, queries: Encoded, num_candidates: int, coarse: bool) -> SortKeys:
        """Return the sort keys of each query's greatest bounds, [Q, K], in descending order."""
        bounds = upper_bounds(queries, self.stored.similarity, self.device, coarse=coarse)
        greatest = top_keys(len(queries), num_candidates, self.device)
        for start, tile in self._tiles(len(queries)):
            greatest.add(bounds(tile), self.ranks[start : start + len(tile)])
        return greatest.keys()

    def _tiles(self, num_queries: int) -> Iterator[tuple[int, Encoded]]:
        """Yield all passages in tiles that fit into memory together with their bounds for all queries."""
        largest = max(MIN_TILE, CACHE_BYTES // (4 * num_queries)) if self.device.type == "cpu" else len(self.ids)
        for start, shard in self.stored.shards():
            step = min(largest, max(1, MEMORY_BYTES // max(32 * num_queries, 2 * row_bytes(shard))))
            for first in range(0, len(shard), step):
                yield start + first, shard.rows(first, min(first + step, len(shard)))
