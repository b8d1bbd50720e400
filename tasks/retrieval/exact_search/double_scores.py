"""The scores of given pairs as double precision has them, from what is stored, rounded to single precision once.

They depend on the two texts' vectors alone: not on what is searched together, nor on how memory is portioned. The
dense and lexical scores are inner products; the late one is the sum, over the query's tokens, of the best of the
passage's (MaxSim), where exact matches are asked for among the same word pieces and no less than 0.

Shape suffixes: Q queries, D dimension, I tokens of queries, T tokens of passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.retrievers.retriever import SUM
from storage.vectors import Encoded, TokenRows, Vectors, describe_vectors, num_shards, read_shard
from tasks.retrieval.exact_search.matmul import factors, on_device, products
from tasks.retrieval.exact_search.numba_kernels import (
    Doubles,
    dense_scores,
    late_scores,
    lexical_scores,
    matching_scores,
)
from tasks.retrieval.ranking import Places

BYTES = 2**26  # what is held of scores and of vectors at a time, about
BLOCK = 2**18  # products of tokens that a core's cache holds
TOGETHER = 64  # queries whose tokens are compared at once
CPU = torch.device("cpu")

PairScores = Callable[[Any, Places, Places], Doubles]
"""(what is stored of passages, numbers of queries, places in it) -> the scores of these pairs in one view."""


@dataclass(frozen=True)
class Similarity:
    """A weighted sum of views."""

    weights: Mapping[str, float]
    exact_match: bool
    """Whether the late view compares only tokens that are the same word piece."""


def similarity(folder: Path, view: str) -> Similarity:
    """What a view of stored vectors is compared by; `sum` is that of all views, as the retriever weighs them."""
    description = describe_vectors(folder)
    weights = description["views"] if view == SUM else {view: 1.0}
    return Similarity(weights, description["exact_match"])


class Stored:
    """The vectors of all passages, by place."""

    def __init__(self, folder: Path, similarity: Similarity) -> None:
        self.folder, self.similarity = folder, similarity
        first = next(iter(similarity.weights))
        lengths = [len(read_shard(folder, shard, first)) for shard in range(num_shards(folder))]
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def shards(self) -> Iterator[tuple[int, Encoded]]:
        """Each shard's first place and what the similarity compares of its passages, memory-mapped."""
        for shard, start in enumerate(self.starts[:-1]):
            views = [read_shard(self.folder, shard, view) for view in self.similarity.weights]
            yield int(start), Encoded(**{name: part(each, name) for each in views for name in each.views})

    def scores(self, queries: Encoded, numbers: Places, places: Places) -> Vectors:
        """The scores [pairs] of the queries with these numbers and the passages at these places, pair by pair.

        It is fastest where the pairs of a query stand together.
        """
        shards = np.searchsorted(self.starts, places, side="right") - 1
        totals, order = np.zeros(len(places)), np.argsort(shards, kind="stable")
        compared = {view: _pair_scores(queries, view, self.similarity) for view in self.similarity.weights}
        bounds = np.searchsorted(shards[order], np.arange(len(self.starts)))
        for shard in np.flatnonzero(np.diff(bounds)):
            pairs, start = order[bounds[shard] : bounds[shard + 1]], self.starts[shard]
            for view, weight in self.similarity.weights.items():
                passages = part(read_shard(self.folder, int(shard), view), view)
                totals[pairs] += weight * compared[view](passages, numbers[pairs], places[pairs] - start)
        rounded: Vectors = (totals + 0.0).astype(np.float32)  # + 0.0: no score is -0.0
        return rounded


def row_bytes(encoded: Encoded) -> int:
    """How many bytes a row takes on average, 1 or more."""
    lexical, late = encoded.lexical, encoded.late
    size = 0 if encoded.dense is None else encoded.dense.nbytes
    size += 0 if lexical is None else lexical.ids.nbytes + lexical.values.nbytes
    size += 0 if late is None else late.ids.nbytes + late.vectors.nbytes
    return max(1, size // max(1, len(encoded)))


def part(encoded: Encoded, view: str) -> Any:
    """What a view holds of the texts."""
    found = getattr(encoded, view)
    if found is None:
        raise ValueError(f"expected the {view} view, found {', '.join(encoded.views)}")
    return found


def _pair_scores(queries: Encoded, view: str, similarity: Similarity) -> PairScores:
    if view == "dense":
        return partial(dense_scores, part(queries, view).astype(np.float64))
    if view == "lexical":
        return partial(lexical_scores, part(queries, view))
    late: TokenRows = part(queries, view)
    if similarity.exact_match:
        return partial(matching_scores, late, late.vectors.astype(np.float64))
    return partial(_late, late)


def _late(queries: TokenRows, passages: TokenRows, numbers: Places, places: Places) -> Doubles:
    """MaxSim: coarse products say which of a passage's tokens can be a query token's best."""
    found, length = np.empty(len(places)), max(1, len(passages.vectors) // max(1, len(passages)))
    for start, stop, width in rectangles(numbers, places):
        some, scores_QP = queries.taken(numbers[start:stop:width]), found[start:stop].reshape(-1, width)
        tokens_ID, errors_I = factors(on_device(some.vectors, CPU), coarse=True)
        doubles_ID = some.vectors.astype(np.float64)
        step = max(1, BLOCK // (length * max(1, len(tokens_ID))))
        for first in range(0, width, step):
            rows = _rows_at(passages, places[start + first : start + min(first + step, width)])
            vectors_TD = on_device(rows.vectors, CPU)
            errors = errors_I * vectors_TD.norm(dim=1).max() if len(vectors_TD) else errors_I
            products_TI = products(vectors_TD, tokens_ID, coarse=True)
            scores = late_scores(some, doubles_ID, rows, products_TI.numpy(), errors.numpy())
            scores_QP[:, first : first + step] = scores
    return found


def rectangles(numbers: Places, places: Places) -> Iterator[tuple[int, int, int]]:
    """(start, stop, width) of pairs that belong together: some queries, each with the same `width` places."""
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    start, width = 0, edges[1]
    for stop, after in pairwise(edges[1:]):
        same = after - stop == width and np.array_equal(places[start : start + width], places[stop:after])
        if not same or stop - start >= TOGETHER * width:
            yield start, stop, width
            start, width = stop, after - stop
    yield start, len(numbers), width


def _rows_at(rows: TokenRows, places: Places) -> TokenRows:
    """The rows at these places, not copied where they lie one after the other."""
    if (np.diff(places) == 1).all():
        return rows.rows(int(places[0]), int(places[-1]) + 1)
    return rows.taken(places)
