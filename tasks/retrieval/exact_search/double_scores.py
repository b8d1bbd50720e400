"""Scores of query-passage pairs in double precision, from the stored float32 vectors, rounded once to float32.

A score depends on the vectors of the two texts only: not on the other pairs of a call, nor on how memory is divided.
Dense and lexical scores are inner products. The late-interaction score is MaxSim: the sum, over the query's tokens, of
the greatest inner product with a token of the passage. With exact matching only equal WordPiece tokens are compared,
and the maximum is at least 0.

Shape suffixes: Q queries, P passages, N pairs, D dimension, I tokens of queries, T tokens of passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.retrievers.retriever import SUM
from storage.vectors import Encoded, TokenRows, describe_vectors, num_shards, read_shard
from tasks.retrieval.exact_search.matmul import factors_with_errors, inner_products, on_device
from tasks.retrieval.exact_search.numba_kernels import (
    Doubles,
    dense_scores,
    late_scores,
    lexical_scores,
    matching_scores,
)
from tasks.retrieval.ranking import Indices

MEMORY_BYTES = 2**26  # of bounds or vectors that are in memory at a time, approximately
PRODUCTS_PER_BLOCK = 2**18  # token products in float32 that fit into a core's cache
PAIRS_PER_THREAD = 2**12  # that take longer than starting a thread
QUERIES_PER_BLOCK = 64  # whose tokens are multiplied in one matrix product
CPU = torch.device("cpu")

PairScores = Callable[[Any, Indices, Indices], Doubles]
"""(one representation of a shard, query rows [N], passage rows in the shard [N]) -> scores [N]."""


@dataclass(frozen=True)
class Similarity:
    """A weighted sum of the scores of representations (views)."""

    weights: Mapping[str, float]
    exact_match: bool
    """Whether late interaction compares only equal WordPiece tokens."""


def read_similarity(folder: Path, view: str) -> Similarity:
    """Return the similarity for a view of stored vectors; `sum` weighs all views as the retriever does."""
    description = describe_vectors(folder)
    weights = description["views"] if view == SUM else {view: 1.0}
    return Similarity(weights, description["exact_match"])


class StoredVectors:
    """The vectors of all passages on disk, by row of the Passages table, compared by one view or by the sum of all."""

    def __init__(self, folder: Path, view: str, threads: int = 1) -> None:
        """`threads` share the pairs that are scored."""
        self.folder, self.similarity, self.threads = folder, read_similarity(folder, view), threads
        first_view = next(iter(self.similarity.weights))
        lengths = [len(read_shard(folder, shard, first_view)) for shard in range(num_shards(folder))]
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def shards(self) -> Iterator[tuple[int, Encoded]]:
        """Yield the first row of each shard and its representations, memory-mapped."""
        for shard, start in enumerate(self.starts[:-1]):
            weights = self.similarity.weights
            views = {view: representation(read_shard(self.folder, shard, view), view) for view in weights}
            yield int(start), Encoded(**views)

    def passage(self, row: int) -> Encoded:
        """Return the representations of one passage, by its row."""
        shard = int(np.searchsorted(self.starts, row, side="right")) - 1
        number, weights = row - int(self.starts[shard]), self.similarity.weights
        views = {view: representation(read_shard(self.folder, shard, view).taken([number]), view) for view in weights}
        return Encoded(**views)

    def scores(self, queries: Encoded, query_rows: Indices, passage_rows: Indices) -> NDArray[np.float32]:
        """Return the scores [N] of N pairs of a row of `queries` and a row of the passages.

        It is fastest where the pairs of a query are adjacent. The compiled loops do not hold Python's lock.
        """
        parts = parts_of(query_rows, self.threads)
        with ThreadPoolExecutor(len(parts), thread_name_prefix="scores") as threads:
            scores = threads.map(lambda part: self._scores(queries, query_rows[part], passage_rows[part]), parts)
            return np.concatenate([np.empty(0, np.float32), *scores])

    def _scores(self, queries: Encoded, query_rows: Indices, passage_rows: Indices) -> NDArray[np.float32]:
        """Return the scores of pairs in this thread."""
        shards = np.searchsorted(self.starts, passage_rows, side="right") - 1
        totals, order = np.zeros(len(passage_rows)), np.argsort(shards, kind="stable")
        pair_scores = {view: _pair_scores(queries, view, self.similarity) for view in self.similarity.weights}
        ends = np.searchsorted(shards[order], np.arange(len(self.starts)))
        for shard in np.flatnonzero(np.diff(ends)):
            pairs, start = order[ends[shard] : ends[shard + 1]], self.starts[shard]
            for view, weight in self.similarity.weights.items():
                passages = representation(read_shard(self.folder, int(shard), view), view)
                totals[pairs] += weight * pair_scores[view](passages, query_rows[pairs], passage_rows[pairs] - start)
        rounded: NDArray[np.float32] = (totals + 0.0).astype(np.float32)  # + 0.0: no score is -0.0
        return rounded


def parts_of(query_rows: Indices, number: int) -> list[slice]:
    """Return at most `number` parts of the pairs, about equal; adjacent pairs of a query are in one part."""
    number = max(1, min(number, len(query_rows) // PAIRS_PER_THREAD))
    starts = np.flatnonzero(np.diff(query_rows, prepend=-1))  # of each query's pairs
    nearest = np.searchsorted(starts, np.arange(1, number) * (len(query_rows) / number))
    inner = starts[nearest[nearest < len(starts)]].tolist()
    edges = list(dict.fromkeys([0, *inner, len(query_rows)]))
    return [slice(*edge) for edge in pairwise(edges)] or [slice(0, 0)]


def row_bytes(encoded: Encoded) -> int:
    """Return the mean number of bytes of a row, 1 or more."""
    lexical, late = encoded.lexical, encoded.late
    size = 0 if encoded.dense is None else encoded.dense.nbytes
    size += 0 if lexical is None else lexical.ids.nbytes + lexical.values.nbytes
    size += 0 if late is None else late.ids.nbytes + late.vectors.nbytes
    return max(1, size // max(1, len(encoded)))


def representation(encoded: Encoded, view: str) -> Any:
    """Return one view's representation of the texts. Raises ValueError where they do not have it."""
    rows = getattr(encoded, view)
    if rows is None:
        raise ValueError(f"expected the {view} view, found {', '.join(encoded.views)}")
    return rows


def _pair_scores(queries: Encoded, view: str, similarity: Similarity) -> PairScores:
    rows = representation(queries, view)
    if view == "dense":
        return partial(dense_scores, rows.astype(np.float64))
    if view == "lexical":
        return partial(lexical_scores, rows)
    if similarity.exact_match:
        return partial(matching_scores, rows, rows.vectors.astype(np.float64))
    return partial(_max_sim, rows)


def _max_sim(queries: TokenRows, passages: TokenRows, query_rows: Indices, passage_rows: Indices) -> Doubles:
    """Return MaxSim of pairs [N]: coarse products narrow down which passage tokens can be the best of a query token.

    A matrix product of all tokens is much faster than loops in double precision. As its error is bounded, only tokens
    within twice the error of the greatest product have to be multiplied again (`late_scores`).
    """
    scores, mean_tokens = np.empty(len(passage_rows)), max(1, len(passages.vectors) // max(1, len(passages)))
    for start, stop, width in blocks_of_pairs(query_rows, passage_rows):
        block, scores_QP = queries.taken(query_rows[start:stop:width]), scores[start:stop].reshape(-1, width)
        tokens_ID, errors_I = factors_with_errors(on_device(block.vectors, CPU), coarse=True)
        doubles_ID = block.vectors.astype(np.float64)
        step = max(1, PRODUCTS_PER_BLOCK // (mean_tokens * max(1, len(tokens_ID))))
        for first in range(0, width, step):
            rows = _rows_at(passages, passage_rows[start + first : start + min(first + step, width)])
            vectors_TD = on_device(rows.vectors, CPU)
            errors = errors_I * vectors_TD.norm(dim=1).max() if len(vectors_TD) else errors_I
            products_TI = inner_products(vectors_TD, tokens_ID, coarse=True)
            block_scores = late_scores(block, doubles_ID, rows, products_TI.numpy(), errors.numpy())
            scores_QP[:, first : first + step] = block_scores
    return scores


def blocks_of_pairs(query_rows: Indices, passage_rows: Indices) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, width) of consecutive pairs that form a complete block: some queries x `width` passages.

    Adjacent queries with the same passages share a block, so that one matrix product serves them all.
    """
    edges = [0, *(np.flatnonzero(np.diff(query_rows)) + 1).tolist(), len(query_rows)]
    start, width = 0, edges[1]
    for stop, after in pairwise(edges[1:]):
        same = after - stop == width and np.array_equal(passage_rows[start : start + width], passage_rows[stop:after])
        if not same or stop - start >= QUERIES_PER_BLOCK * width:
            yield start, stop, width
            start, width = stop, after - stop
    yield start, len(query_rows), width


def _rows_at(rows: TokenRows, indices: Indices) -> TokenRows:
    """Return the rows at these indices, without a copy where they are consecutive."""
    if (np.diff(indices) == 1).all():
        return rows.rows(int(indices[0]), int(indices[-1]) + 1)
    return rows.taken(indices)
