"""Exact search of stored vectors, by any view or by the weighted sum of all: every passage is scored, nothing is built.

Passages are taken in tiles, and each gets an upper bound of its score on the run's device
(`tasks.retrieval.exact_search.upper_bounds`). Those of the greatest bounds are scored in double precision, and then
whoever's bound is above the last of these; a list is done when it ends above every bound that was left out, else more
are kept and bounds are closer. So lists are those of double precision, rounded to float32, with ties by passage id,
whatever is searched together and however memory is portioned.

Shape suffixes: Q queries, P passages of a tile, K passages kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.rows import num_rows
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, describe_vectors
from tasks.retrieval.exact_search.double_scores import BYTES, Stored, row_bytes, similarity
from tasks.retrieval.exact_search.top_k import NO_KEY, RANKS, Keys, best_of, score_of, sort_keys
from tasks.retrieval.exact_search.upper_bounds import upper_bounds
from tasks.retrieval.index import EngineSettings
from tasks.retrieval.ranking import Hits, Lookup, PassageIds, Places, Searcher
from tasks.runtime.device import choose_device

VIEWS = ("dense", "lexical", "late", "sum")
KEPT_BESIDES = 32  # bounds beyond twice the depth, among which rounding may have hidden a better passage
CACHED = 2**20  # bytes of bounds that are chosen from while a core's cache still holds them
FEWEST = 512  # passages that are worth multiplying at a time


class Exact(EngineSettings):
    """All passages are scored; no setting changes what comes out."""

    engine: Literal["exact"]


def build(
    out: Path,
    passages: Artifact[Passages],
    vectors: Artifact[Vectors] | None,
    pseudo_queries: Artifact[PseudoQueries] | None,
    settings: Exact,
) -> None:
    """Build nothing: the vectors are searched as they are."""
    if vectors is None or pseudo_queries is not None:
        raise TypeError("exact search needs vectors and reads no pseudo-queries")
    if describe_vectors(vectors.path)["passages"] != num_rows(passages.path):
        raise ValueError(f"{vectors.path}: expected the vectors of the passages of {passages.path}")


def open_index(
    path: Path,
    vectors: Artifact[Vectors] | None,
    encode: Callable[[Sequence[str]], Encoded] | None,
    ids: PassageIds,
    view: str,
) -> Searcher:
    """Search a view of the vectors, or `sum`."""
    if vectors is None or encode is None:
        raise TypeError("exact search needs vectors and what encodes queries")
    find = Exhaustive(Stored(vectors.path, similarity(vectors.path, view)), ids)

    def searcher(texts: Sequence[str]) -> Lookup:
        encoded = encode(texts)
        return lambda queries, depth: find(encoded.taken(queries), depth)

    return searcher


class Exhaustive:
    """Stored vectors whose lists are certain."""

    def __init__(self, stored: Stored, ids: PassageIds) -> None:
        if len(stored) != len(ids):
            raise ValueError(f"{stored.folder} holds {len(stored)} passages' vectors, the passages are {len(ids)}")
        self.stored, self.ids, self.device = stored, ids, choose_device()
        self.ranks: Places = len(ids) - 1 - ids.descending  # what is greater comes first among equals
        self.places: Places = np.empty_like(self.ranks)
        self.places[self.ranks] = np.arange(len(ids))

    def __call__(self, queries: Encoded, depth: int) -> list[Hits]:
        """Each query's `depth` best passages, or all."""
        found: dict[int, Hits] = {}
        waiting, kept, coarse = np.arange(len(queries)), min(2 * depth + KEPT_BESIDES, len(self.ids)), True
        while len(waiting):
            step = max(1, BYTES // (32 * max(FEWEST, kept) + row_bytes(queries)))
            for start in range(0, len(waiting), step):
                some = waiting[start : start + step]
                keys_QK = self._proposed(queries.taken(some), kept, coarse)
                for number, (hits, certain) in zip(some, self._best(queries.taken(some), keys_QK, depth), strict=True):
                    if certain:
                        found[int(number)] = hits
            waiting = np.array([number for number in waiting if int(number) not in found], dtype=np.int64)
            kept, coarse = min(4 * kept, len(self.ids)), False
        return [found[number] for number in range(len(queries))]

    def _best(self, queries: Encoded, bounds_QK: Keys, depth: int) -> Iterator[tuple[Hits, bool]]:
        """The best of what falling bounds propose, and whether nothing that was not proposed can belong to them."""
        keys_QK, first_QK = np.full_like(bounds_QK, NO_KEY), np.zeros(bounds_QK.shape, bool)
        first_QK[:, :depth] = True
        keys_QK[first_QK] = self._scored(queries, bounds_QK, first_QK)
        if bounds_QK.shape[1] > depth:
            others_QK = ~first_QK & (bounds_QK >= keys_QK[:, :depth].min(axis=1, keepdims=True))
            keys_QK[others_QK] = self._scored(queries, bounds_QK, others_QK)
        best_QK = np.sort(keys_QK)[:, ::-1][:, :depth]
        scores_QK, places_QK = score_of(torch.from_numpy(best_QK.copy())).numpy(), self.places[best_QK & RANKS]
        everything = bounds_QK.shape[1] == len(self.ids)
        for bounds, keys, places, scores in zip(bounds_QK, best_QK, places_QK, scores_QK, strict=True):
            yield Hits(places, scores), everything or bool(keys[-1] >= bounds[-1])

    def _scored(self, queries: Encoded, bounds_QK: Keys, chosen_QK: NDArray[np.bool_]) -> Keys:
        """The keys of the chosen passages' scores."""
        ranks = bounds_QK[chosen_QK] & RANKS
        scores = self.stored.scores(queries, chosen_QK.nonzero()[0], self.places[ranks])
        keys: Keys = sort_keys(torch.from_numpy(scores), torch.from_numpy(ranks)).numpy()
        return keys

    @torch.inference_mode()
    def _proposed(self, queries: Encoded, kept: int, coarse: bool) -> Keys:
        """The keys of each query's passages of the greatest bounds, [Q, K], falling."""
        bounds = upper_bounds(queries, self.stored.similarity, self.device, coarse=coarse)
        best = best_of(len(queries), kept, self.device)
        for start, tile in self._tiles(len(queries)):
            best.add(bounds(tile), self.ranks[start : start + len(tile)])
        return best.keys()

    def _tiles(self, num_queries: int) -> Iterator[tuple[int, Encoded]]:
        """All passages, so few at a time that they and their bounds for all queries fit."""
        most = max(FEWEST, CACHED // (4 * num_queries)) if self.device.type == "cpu" else len(self.ids)
        for start, shard in self.stored.shards():
            step = min(most, max(1, BYTES // max(32 * num_queries, 2 * row_bytes(shard))))
            for first in range(0, len(shard), step):
                yield start + first, shard.rows(first, min(first + step, len(shard)))
