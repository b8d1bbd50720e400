"""Loops over pairs of texts, compiled by Numba: scores in double precision, from single precision as it is stored.

A sum's order depends on the two texts alone. What is compiled is kept for as long as the process lives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.vectors import Offsets, SparseRows, TokenRows, Vectors

Doubles = NDArray[np.float64]
Places = NDArray[np.int64]
Out = TypeVar("Out", Doubles, Vectors)


def dense_scores(queries_QD: Doubles, passages_PD: Vectors, numbers: Places, places: Places) -> Doubles:
    """The inner product of each pair of a query's number and a passage's place."""
    return _filled(_dense_scores, queries_QD, passages_PD, numbers, places, out=np.empty(len(places)))


def lexical_scores(queries: SparseRows, passages: SparseRows, numbers: Places, places: Places) -> Doubles:
    """As `dense_scores`, of weights of word pieces; pairs of one query are best given one after the other."""
    columns = np.zeros(int(queries.ids.max(initial=-1)) + 1)
    return _filled(
        _lexical_scores, *_parts(queries), *_parts(passages), numbers, places, columns, out=np.empty(len(places))
    )


def all_lexical_scores(queries: SparseRows, passages: SparseRows) -> Vectors:
    """The score of every query with every passage, [Q, P], rounded once; it may be a bit off `lexical_scores`.

    Its sums are in another order, so one in a thousand million rounds to the neighbouring number.

    Each of a query's word pieces adds to the sums of the passages that have it, so that no pair is looked at which
    shares none.
    """
    columns = np.zeros(int(queries.ids.max(initial=-1)) + 2, np.bool_)  # the last for all that no query has
    out: Vectors = np.empty((len(queries), len(passages)), np.float32)
    return _filled(_all_lexical_scores, *_parts(queries), *_parts(passages), columns, out=out)


def late_scores(
    queries: TokenRows, doubles_ID: Doubles, passages: TokenRows, products_TI: Vectors, errors_I: Vectors
) -> Doubles:
    """The sum, over the tokens of each query, of the best of each passage's, [Q, P]; 0 where a passage has none.

    `doubles_ID` are the queries' tokens. `products_TI` are off by at most `errors_I`, so that the best is
    among those within twice that of the greatest: these alone are multiplied again.
    """
    out = np.zeros((len(queries), len(passages)))
    given = (queries.offsets, doubles_ID, passages.offsets, passages.vectors, products_TI, errors_I)
    return _filled(_late_scores, *given, out=out)


def greatest(values_TI: Vectors, offsets: Offsets) -> Vectors:
    """Of rows from each offset up to the next, the greatest in each column, [P, I]; 0 where there is none."""
    out: Vectors = np.zeros((len(offsets) - 1, values_TI.shape[1]), np.float32)
    return _filled(_greatest, values_TI, offsets, out=out)


def add_keys(bounds_QP: Vectors, ranks_P: Places, found_QM: NDArray[np.int64], counts_Q: NDArray[np.int64]) -> None:
    """Add to each query's first `counts_Q` keys those that bounds and ranks make, if above the first
    (`tasks.retrieval.exact_search.top_k`).

    There is to be room for all: P places after the greatest count.
    """
    _compiled(_add_keys)(np.ascontiguousarray(bounds_QP), ranks_P, found_QM, counts_Q)


def matching_scores(
    queries: TokenRows, doubles_ID: Doubles, passages: TokenRows, numbers: Places, places: Places
) -> Doubles:
    """As late scores, of pairs, where a token is compared with those of the same word piece, and none is below 0."""
    given = (queries.offsets, queries.ids, doubles_ID, passages.offsets, passages.ids, passages.vectors)
    return _filled(_matching_scores, *given, numbers, places, out=np.empty(len(places)))


def _dense_scores(queries_QD: Any, passages_PD: Any, numbers: Any, places: Any, out: Any) -> None:
    for pair in range(len(places)):
        query_D, passage_D, score = queries_QD[numbers[pair]], passages_PD[places[pair]], 0.0
        for d in range(len(passage_D)):
            score += query_D[d] * np.float64(passage_D[d])
        out[pair] = score


def _lexical_scores(
    starts: Any, ids: Any, values: Any, begins: Any, pieces: Any, weights: Any, numbers: Any, places: Any, none: Any,
    out: Any,
) -> None:  # fmt: skip
    columns, last = none.copy(), -1
    for pair in range(len(places)):
        if numbers[pair] != last:
            if last >= 0:
                columns[ids[starts[last] : starts[last + 1]]] = 0.0
            last = numbers[pair]
            for k in range(starts[last], starts[last + 1]):
                columns[ids[k]] = values[k]
        score = 0.0
        for k in range(begins[places[pair]], begins[places[pair] + 1]):
            if pieces[k] < len(columns):
                score += columns[pieces[k]] * np.float64(weights[k])
        out[pair] = score


def _all_lexical_scores(
    starts: Any, ids: Any, values: Any, begins: Any, pieces: Any, weights: Any, none: Any, out: Any
) -> None:
    asked, firsts, last = none.copy(), np.zeros(len(none) + 1, np.int64), len(none) - 1
    asked[ids] = True
    for piece in pieces:
        firsts[min(piece, last) + 1] += asked[min(piece, last)]
    firsts = firsts.cumsum()
    # What is not asked for goes to one place behind the others: a condition that cannot be foretold would cost more.
    after = np.where(asked, firsts[:-1], firsts[-1])
    owners, their = np.empty(firsts[-1] + 1, np.uint32), np.empty(firsts[-1] + 1, np.float32)
    for place in range(len(begins) - 1):
        for k in range(begins[place], begins[place + 1]):
            piece = min(pieces[k], last)
            owners[after[piece]], their[after[piece]] = place, weights[k]
            after[piece] += asked[piece]
    sums = np.empty(len(begins) - 1)
    for query in range(len(starts) - 1):
        sums[:] = 0.0
        for k in range(starts[query], starts[query + 1]):
            value = np.float64(values[k])
            for j in range(firsts[ids[k]], firsts[ids[k] + 1]):
                sums[owners[j]] += value * np.float64(their[j])
        out[query] = sums


def _late_scores(
    starts: Any, tokens_ID: Any, begins: Any, vectors_TD: Any, products_TI: Any, errors_I: Any, out: Any
) -> None:
    least_I = np.empty(len(errors_I), np.float32)
    near_I, nearest_I = np.empty(len(errors_I), np.int32), np.empty(len(errors_I), np.int32)
    for place in range(len(begins) - 1):
        if begins[place] == begins[place + 1]:
            continue
        least_I[:] = -np.inf
        for t in range(begins[place], begins[place + 1]):
            for i in range(len(least_I)):
                least_I[i] = products_TI[t, i] if products_TI[t, i] > least_I[i] else least_I[i]
        for i in range(len(least_I)):
            least_I[i] -= np.float32(2.001) * errors_I[i]  # the subtraction is rounded, too
            near_I[i] = 0
        for t in range(begins[place], begins[place + 1]):
            for i in range(len(least_I)):
                near_I[i] += np.int32(products_TI[t, i] >= least_I[i])
                nearest_I[i] = np.int32(t) if products_TI[t, i] >= least_I[i] else nearest_I[i]
        for query in range(len(starts) - 1):
            score = 0.0
            for i in range(starts[query], starts[query + 1]):
                best = -np.inf
                # As a rule one is near, and is known; else they are looked for.
                first = nearest_I[i] if near_I[i] == 1 else begins[place]
                for t in range(first, nearest_I[i] + 1):
                    if products_TI[t, i] >= least_I[i]:
                        product = 0.0
                        for d in range(vectors_TD.shape[1]):
                            product += tokens_ID[i, d] * np.float64(vectors_TD[t, d])
                        best = max(best, product)
                score += best
            out[query, place] = score


def _greatest(values_TI: Any, begins: Any, out: Any) -> None:
    for place in range(len(begins) - 1):
        for t in range(begins[place], begins[place + 1]):
            first = t == begins[place]
            for i in range(values_TI.shape[1]):
                out[place, i] = values_TI[t, i] if first or values_TI[t, i] > out[place, i] else out[place, i]


def _add_keys(bounds_QP: Any, ranks_P: Any, found_QM: Any, counts_Q: Any) -> None:
    near, bits = np.zeros(64, np.uint8), np.zeros(1, np.int32)
    eights, score = near.view(np.uint64), bits.view(np.float32)
    for query in range(len(counts_Q)):
        bounds, found, count = bounds_QP[query], found_QM[query], counts_Q[query]
        least, highs = found[0], bounds.view(np.int32)
        bits[0] = (least >> 32) if least >= 0 else (least >> 32) ^ 0x7FFFFFFF
        for start in range(0, len(bounds), len(near)):
            some = bounds[start : start + len(near)]
            for p in range(len(near)):
                near[p] = p < len(some) and some[p] >= score[0]
            for eight in range(len(eights)):  # of passages, most of which are all too far away
                if eights[eight] == 0:
                    continue
                for p in range(8 * eight, 8 * eight + 8):
                    if near[p]:
                        high = np.int64(highs[start + p]) if some[p] != 0.0 else 0  # -0.0 is 0.0
                        found[count] = ((high if high >= 0 else high ^ 0x7FFFFFFF) << 32) | ranks_P[start + p]
                        count += found[count] > least
        counts_Q[query] = count


def _matching_scores(
    starts: Any, ids: Any, tokens_ID: Any, begins: Any, pieces: Any, vectors_TD: Any, numbers: Any, places: Any,
    out: Any,
) -> None:  # fmt: skip
    for pair in range(len(places)):
        score = 0.0
        for i in range(starts[numbers[pair]], starts[numbers[pair] + 1]):
            best = 0.0
            for t in range(begins[places[pair]], begins[places[pair] + 1]):
                if pieces[t] == ids[i]:
                    product = 0.0
                    for d in range(vectors_TD.shape[1]):
                        product += tokens_ID[i, d] * np.float64(vectors_TD[t, d])
                    best = max(best, product)
            score += best
        out[pair] = score


def _parts(rows: SparseRows) -> tuple[NDArray[Any], ...]:
    return rows.offsets, rows.ids, rows.values


@cache
def _compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    import numba

    # Sums may be taken in several parts, so that these are computed side by side; nothing else of floats is loosened.
    made: Callable[..., None] = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(kernel)
    return made


def _filled(kernel: Callable[..., None], *given: NDArray[Any], out: Out) -> Out:
    """Run a kernel on arrays that are marked as only read, as memory-mapped ones are: one compilation serves all."""
    fixed = [np.ascontiguousarray(array).view() for array in given]
    for array in fixed:
        array.flags.writeable = False
    _compiled(kernel)(*fixed, out)
    return out
