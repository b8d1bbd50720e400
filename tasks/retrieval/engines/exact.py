"""Exact search of stored vectors, by one view or the weighted sum of all: no index, every passage is compared.

1. Passages are read in tiles, once for a large block of queries; an accelerator keeps them if they fit
   (`exact_search.tiles`). Each gets an upper bound of its score in low precision, on the run's device
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
from functools import partial
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
from tasks.retrieval.exact_search.tiles import DEVICE_QUERIES, MIN_TILE, Tiles
from tasks.retrieval.exact_search.top_k import NO_KEY, RANK_MASK, SortKeys, score_of, sort_keys, top_keys
from tasks.retrieval.exact_search.upper_bounds import free_bytes, is_accelerator, upper_bounds, weights_bytes
from tasks.retrieval.index import EngineSettings
from tasks.retrieval.ranking import Hits, Indices, Lookup, Searcher
from tasks.runtime.device import choose_device, num_host_threads
from tasks.runtime.progress import report_share

Report = Callable[[float], None]  # is called with the share of a pass that is done, from 0 to 1

VIEWS = ("dense", "lexical", "late", "sum")
EXTRA_CANDIDATES = 32  # beyond twice the depth: rounding may have put a better passage behind a worse one
BLOCK_BYTES = 2**31  # of queries, with their candidates, for which all passages are read once


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
    search = ExactSearch(StoredVectors(vectors.path, view, num_host_threads()), ids)

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
        self.tiles = Tiles(stored, self.device)
        self.ranks: Indices = ids.ranks  # by row: the greater rank comes first among ties
        self.rows: Indices = ids.rows_by_rank

    def __call__(self, queries: Encoded, depth: int) -> list[Hits]:
        """Return each query's `depth` best passages, or all if there are fewer."""
        results: dict[int, Hits] = {}
        pending = np.arange(len(queries))
        num_candidates, coarse = min(2 * depth + EXTRA_CANDIDATES, len(self.ids)), True
        while len(pending):
            step = self._queries_per_pass(queries, num_candidates)
            for start in range(0, len(pending), step):
                block = pending[start : start + step]
                report = partial(_report, start, len(block), len(pending))
                lists = self._search(queries.taken(block), depth, num_candidates, coarse, report)
                for query, (hits, complete) in zip(block, lists, strict=True):
                    if complete:
                        results[int(query)] = hits
            pending = np.array([query for query in pending if int(query) not in results], dtype=np.int64)
            num_candidates, coarse = min(4 * num_candidates, len(self.ids)), False
        return [results[query] for query in range(len(queries))]

    def _queries_per_pass(self, queries: Encoded, num_candidates: int) -> int:
        """Return the number of queries for which all passages are read once, as far as memory allows."""
        step = max(1, BLOCK_BYTES // _query_bytes(queries, num_candidates))
        if (
            queries.lexical is None
            or "lexical" not in self.stored.similarity.weights
            or not is_accelerator(self.device)
        ):
            return step
        return max(DEVICE_QUERIES, min(step, free_bytes(self.device) // 8 // weights_bytes(queries.lexical)))

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

    def _search(
        self, queries: Encoded, depth: int, num_candidates: int, coarse: bool, report: Report
    ) -> Iterator[tuple[Hits, bool]]:
        """Yield each query's best candidates, and whether no other passage can belong to them."""
        is_on_cpu = not is_accelerator(self.device)
        size = max(1, MEMORY_BYTES // _query_bytes(queries, num_candidates)) if is_on_cpu else DEVICE_QUERIES
        starts = range(0, len(queries), size)
        blocks = [queries.rows(start, min(start + size, len(queries))) for start in starts]
        all_bounds = self._candidates(blocks, num_candidates, coarse, report)
        for start, block, bounds_QK in zip(starts, blocks, all_bounds, strict=True):
            yield from self._lists(block, bounds_QK, depth)
            report((1 + (start + len(block)) / len(queries)) / 2)

    @torch.inference_mode()
    def _candidates(
        self, blocks: Sequence[Encoded], num_candidates: int, coarse: bool, report: Report
    ) -> list[SortKeys]:
        """Return the sort keys of each query's greatest bounds, [Q, K], in descending order, block by block.

        All passages are read once for all blocks.
        """
        bounds = [upper_bounds(block, self.stored.similarity, self.device, coarse=coarse) for block in blocks]
        greatest = [top_keys(len(block), num_candidates, self.device) for block in blocks]
        for start, tile in self.tiles(max(map(len, blocks)), coarse=coarse):
            for block_bounds, block_greatest in zip(bounds, greatest, strict=True):
                block_greatest.add(block_bounds(tile), self.ranks[start : start + len(tile)])
            report((start + len(tile)) / len(self.stored) / 2)
        return [block_greatest.keys() for block_greatest in greatest]


def _report(start: int, size: int, total: int, share: float) -> None:
    """Report a share of the work for `size` of `total` queries, counted from `start`."""
    report_share((start + share * size) / total)


def _query_bytes(queries: Encoded, num_candidates: int) -> int:
    """Return the memory for a query while its candidates are selected, approximately."""
    return 32 * max(MIN_TILE, num_candidates) + row_bytes(queries)
