"""Exact search of stored vectors, by any view or by the weighted sum of all: every passage is scored, nothing is built.

Passages are taken in tiles, and each gets an upper bound of its score on the run's device (`tasks.bounds`). Those of
the greatest bounds are scored in double precision; a list is done when it ends above every bound that was left out,
else more are scored. So lists are those of double precision, rounded to float32, with ties by passage id, whatever is
searched together and however memory is portioned.

Shape suffixes: Q queries, P passages of a tile, K passages kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.artifact import Artifact
from storage.rows import num_rows
from storage.tables import Passages, PseudoQueries, Vectors
from storage.vectors import Encoded, describe_vectors
from tasks.bounds import upper_bounds
from tasks.device import choose_device
from tasks.hits import Hits, Lookup, PassageIds, Places, Searcher
from tasks.index import EngineSettings
from tasks.rescoring import BYTES, Stored, num_columns, row_bytes, similarity

VIEWS = ("dense", "lexical", "late", "sum")
KEPT_BESIDES = 32  # bounds beyond the depth, among which rounding may have hidden a better passage
RANK_BITS = 32


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
        waiting, kept = np.arange(len(queries)), min(depth + KEPT_BESIDES, len(self.ids))
        while len(waiting):
            step = max(1, BYTES // (16 * max(1, kept) + _query_bytes(queries)))
            for start in range(0, len(waiting), step):
                some = waiting[start : start + step]
                for number, (hits, certain) in zip(some, self._block(queries.taken(some), depth, kept), strict=True):
                    if certain:
                        found[int(number)] = hits
            waiting = np.array([number for number in waiting if int(number) not in found], dtype=np.int64)
            kept = min(4 * kept, len(self.ids))
        return [found[number] for number in range(len(queries))]

    def _block(self, queries: Encoded, depth: int, kept: int) -> Iterator[tuple[Hits, bool]]:
        """The best of what bounds propose, and whether nothing that was not proposed can belong to them."""
        keys_QK = self._proposed(queries, kept)
        places_QK = self.places[keys_QK & (2**RANK_BITS - 1)]
        numbers = np.repeat(np.arange(len(queries)), keys_QK.shape[1])
        scores_QK = self.stored.scores(queries, numbers, places_QK.ravel()).reshape(keys_QK.shape)
        for keys, places, scores in zip(keys_QK, places_QK, scores_QK, strict=True):
            hits = self.ids.in_order(places, scores)
            hits = Hits(hits.places[:depth], hits.scores[:depth])
            yield hits, kept == len(self.ids) or self._last_key(hits) >= keys.min()

    @torch.inference_mode()
    def _proposed(self, queries: Encoded, kept: int) -> NDArray[np.int64]:
        """The keys of each query's passages of the greatest bounds, [Q, K], in no order."""
        bounds = upper_bounds(queries, self.stored.similarity, self.device)
        best_QK = torch.empty((len(queries), 0), dtype=torch.int64, device=self.device)
        for start, tile in self._tiles(len(queries)):
            ranks_P = torch.from_numpy(self.ranks[start : start + len(tile)]).to(self.device)
            best_QK = merged(best_QK, bounds(tile), ranks_P, kept)
        keys: NDArray[np.int64] = best_QK.cpu().numpy()
        return keys

    def _tiles(self, num_queries: int) -> Iterator[tuple[int, Encoded]]:
        """All passages, so few at a time that they and their bounds for all queries fit."""
        for start, shard in self.stored.shards():
            step = max(1, BYTES // max(32 * num_queries, 2 * row_bytes(shard)))
            for first in range(0, len(shard), step):
                yield start + first, shard.rows(first, min(first + step, len(shard)))

    def _last_key(self, hits: Hits) -> int:
        score, rank = torch.tensor(hits.scores[-1]), torch.tensor(self.ranks[hits.places[-1]])
        return int(sort_keys(score, rank))


def merged(best_QK: Tensor, bounds_QP: Tensor, ranks_P: Tensor, kept: int) -> Tensor:
    """The greatest keys, at most `kept` a query, of those there are and a tile's, few of which can be among them."""
    most = bounds_QP.shape[1]
    if best_QK.shape[1] == kept:
        least_Q1 = score_of(best_QK.min(dim=1, keepdim=True).values)
        most = int((bounds_QP >= least_Q1).sum(dim=1).max())
    if most == 0:
        return best_QK
    greatest = bounds_QP.topk(most, sorted=False)
    keys_QK = torch.cat([best_QK, sort_keys(greatest.values, ranks_P[greatest.indices])], dim=1)
    return keys_QK.topk(min(kept, keys_QK.shape[1]), sorted=False).values


def sort_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Whole numbers that are greater the earlier a passage comes: by float32 score, then by rank, below 2^32."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: -0.0 is 0.0
    return (_rising(bits).long() << RANK_BITS) | ranks


def score_of(keys: Tensor) -> Tensor:
    """The float32 scores in keys."""
    return _rising((keys >> RANK_BITS).int()).view(torch.float32)


def _rising(bits: Tensor) -> Tensor:
    """Bits of floats as whole numbers that rise with them; and back."""
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _query_bytes(queries: Encoded) -> int:
    """What a query takes as the scan holds it."""
    return row_bytes(queries) + (0 if queries.lexical is None else 4 * num_columns(queries.lexical))
