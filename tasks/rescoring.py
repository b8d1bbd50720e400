"""The scores of given pairs as double precision has them, from what is stored, rounded to single precision once.

They depend on the two texts' vectors alone: not on what is searched together, nor on how memory is portioned. The
dense and lexical scores are inner products; the late one is the sum, over the query's tokens, of the best of the
passage's (MaxSim), where exact matches are asked for among the same word pieces and no less than 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.retriever import SUM
from storage.vectors import Encoded, SparseRows, TokenRows, Vectors, describe_vectors, num_shards, read_shard
from tasks.hits import Places

BYTES = 2**26  # what is held of scores and of vectors at a time, about

Doubles = NDArray[np.float64]
PairScores = Callable[[Places, Any, Places], Doubles]
"""(numbers of queries, what is stored of passages, places in it) -> the scores of these pairs in one view."""


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
        """The scores [pairs] of the queries with these numbers and the passages at these places, pair by pair."""
        totals, order = np.zeros(len(places)), np.argsort(places, kind="stable")
        compared = {view: _pair_scores(queries, view, self.similarity) for view in self.similarity.weights}
        bounds = np.searchsorted(places[order], self.starts)
        for shard in np.flatnonzero(np.diff(bounds)):
            pairs, start = order[bounds[shard] : bounds[shard + 1]], self.starts[shard]
            for view, weight in self.similarity.weights.items():
                passages = read_shard(self.folder, int(shard), view)
                for some in _portions(pairs, passages):
                    scores = compared[view](numbers[some], part(passages, view), places[some] - start)
                    totals[some] += weight * scores
        rounded: Vectors = (totals + 0.0).astype(np.float32)  # + 0.0: no score is -0.0
        return rounded


def row_bytes(encoded: Encoded) -> int:
    """How many bytes a row takes on average, 1 or more."""
    lexical, late = encoded.lexical, encoded.late
    size = 0 if encoded.dense is None else encoded.dense.nbytes
    size += 0 if lexical is None else lexical.ids.nbytes + lexical.values.nbytes
    size += 0 if late is None else late.ids.nbytes + late.vectors.nbytes
    return max(1, size // max(1, len(encoded)))


def in_columns(rows: SparseRows, columns: int) -> Vectors:
    """The rows as a matrix [N, columns + 1]; the last column is 0 everywhere, for word pieces that none has."""
    found = np.zeros((len(rows), columns + 1), np.float32)
    found[np.repeat(np.arange(len(rows)), np.diff(rows.offsets)), rows.ids] = rows.values
    return found


def num_columns(rows: SparseRows) -> int:
    """How many columns hold all word pieces of the rows."""
    return int(rows.ids.max()) + 1 if len(rows.ids) else 0


def _portions(pairs: Places, passages: Encoded) -> Iterator[Places]:
    step = max(1, BYTES // (4 * row_bytes(passages)))  # twice in double precision
    return (pairs[start : start + step] for start in range(0, len(pairs), step))


def part(encoded: Encoded, view: str) -> Any:
    """What a view holds of the texts."""
    found = getattr(encoded, view)
    if found is None:
        raise ValueError(f"expected the {view} view, found {', '.join(encoded.views)}")
    return found


def _pair_scores(queries: Encoded, view: str, similarity: Similarity) -> PairScores:
    if view == "dense":
        return _dense(part(queries, view))
    if view == "lexical":
        return _lexical(part(queries, view))
    return _late(part(queries, view), similarity.exact_match)


def _dense(queries_QD: Vectors) -> PairScores:
    def scores(numbers: Places, passages_PD: Vectors, places: Places) -> Doubles:
        found: Doubles = (passages_PD[places].astype(np.float64) * queries_QD[numbers]).sum(axis=1)
        return found

    return scores


def _lexical(queries: SparseRows) -> PairScores:
    columns = num_columns(queries)
    queries_QV = in_columns(queries, columns)

    def scores(numbers: Places, passages: SparseRows, places: Places) -> Doubles:
        rows = passages.taken(places)
        pair = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
        products = rows.values.astype(np.float64) * queries_QV[numbers[pair], np.minimum(rows.ids, columns)]
        return np.bincount(pair, products, minlength=len(rows)).astype(np.float64)

    return scores


def _late(queries: TokenRows, exact_match: bool) -> PairScores:
    tokens, starts = queries.vectors.astype(np.float64), queries.offsets

    def scores(numbers: Places, passages: TokenRows, places: Places) -> Doubles:
        rows, found = passages.taken(places), np.zeros(len(places))
        for pair, number in enumerate(numbers):
            query, passage = slice(*starts[number : number + 2]), slice(*rows.offsets[pair : pair + 2])
            products = tokens[query] @ rows.vectors[passage].astype(np.float64).T
            if exact_match:
                same = queries.ids[query, None] == rows.ids[None, passage]
                products = np.where(same, products, 0.0).clip(min=0.0)
            if products.shape[1]:  # a passage without tokens scores 0
                found[pair] = products.max(axis=1).sum()
        return found

    return scores
