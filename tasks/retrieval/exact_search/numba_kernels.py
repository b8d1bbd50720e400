"""Loops over pairs of texts, compiled by Numba once per process: scores in double precision of stored float32 vectors.

Each score is one sum whose order depends on the two texts only, so it is the same whatever else is scored.

Pairs are given by the row of the query and the row of the passage, [N] each. Shape suffixes: Q queries, P passages,
N pairs, D dimension, I tokens of queries, T tokens of passages, M slots for keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.vectors import Offsets, SparseRows, TokenRows
from tasks.retrieval.ranking import Indices

Doubles = NDArray[np.float64]
Out = TypeVar("Out", Doubles, NDArray[np.float32])


def dense_scores(
    queries_QD: Doubles, passages_PD: NDArray[np.float32], query_rows: Indices, passage_rows: Indices
) -> Doubles:
    """Return the inner products of pairs, [N]."""
    return _filled(_dense_scores, queries_QD, passages_PD, query_rows, passage_rows, out=np.empty(len(query_rows)))


def lexical_scores(queries: SparseRows, passages: SparseRows, query_rows: Indices, passage_rows: Indices) -> Doubles:
    """Return the inner products of sparse vectors of pairs, [N]; fastest where the pairs of a query are adjacent."""
    weights = np.zeros(int(queries.ids.max(initial=-1)) + 1)
    arrays = (*_arrays(queries), *_arrays(passages), query_rows, passage_rows, weights)
    return _filled(_lexical_scores, *arrays, out=np.empty(len(query_rows)))


def all_lexical_scores(queries: SparseRows, passages: SparseRows) -> NDArray[np.float32]:
    """Return the scores of all queries with all passages, [Q, P], rounded to float32 once.

    The sums are in another order than those of `lexical_scores`, so that about one score in 10^9 is rounded to the
    neighbouring float32 number. Passages are inverted to postings first: no pair without a common token is visited.
    """
    is_query_token = np.zeros(int(queries.ids.max(initial=-1)) + 2, np.bool_)  # the last: tokens that no query has
    out: NDArray[np.float32] = np.empty((len(queries), len(passages)), np.float32)
    return _filled(_all_lexical_scores, *_arrays(queries), *_arrays(passages), is_query_token, out=out)


def late_scores(
    queries: TokenRows,
    doubles_ID: Doubles,
    passages: TokenRows,
    products_TI: NDArray[np.float32],
    errors_I: NDArray[np.float32],
) -> Doubles:
    """Return MaxSim of all queries with all passages, [Q, P]; 0 for a passage without tokens.

    `doubles_ID` are the queries' token vectors in double precision. `products_TI` have errors of at most `errors_I`, so
    the greatest true product is among those within twice that of the greatest: only these are computed again.
    """
    out = np.zeros((len(queries), len(passages)))
    arrays = (queries.offsets, doubles_ID, passages.offsets, passages.vectors, products_TI, errors_I)
    return _filled(_late_scores, *arrays, out=out)


def matching_scores(
    queries: TokenRows, doubles_ID: Doubles, passages: TokenRows, query_rows: Indices, passage_rows: Indices
) -> Doubles:
    """Return MaxSim of pairs, [N], where only equal WordPiece tokens are compared and no maximum is below 0."""
    arrays = (queries.offsets, queries.ids, doubles_ID, passages.offsets, passages.ids, passages.vectors)
    return _filled(_matching_scores, *arrays, query_rows, passage_rows, out=np.empty(len(query_rows)))


def segment_maxima(values_TI: NDArray[np.float32], offsets: Offsets) -> NDArray[np.float32]:
    """Return the maximum of each column over the rows of each segment, [P, I]; 0 for an empty segment."""
    out: NDArray[np.float32] = np.zeros((len(offsets) - 1, values_TI.shape[1]), np.float32)
    return _filled(_segment_maxima, values_TI, offsets, out=out)


def append_keys(
    bounds_QP: NDArray[np.float32], ranks_P: Indices, keys_QM: NDArray[np.int64], counts_Q: NDArray[np.int64]
) -> None:
    """Append the sort keys (`top_k.sort_keys`) of bounds and ranks that are above each query's key in slot 0.

    `counts_Q` are the numbers of used slots, and are increased; at least P slots must be free.
    """
    _compiled(_append_keys)(np.ascontiguousarray(bounds_QP), ranks_P, keys_QM, counts_Q)


def _dense_scores(queries_QD: Any, passages_PD: Any, query_rows: Any, passage_rows: Any, out: Any) -> None:
    for pair in range(len(query_rows)):
        query_D, passage_D, score = queries_QD[query_rows[pair]], passages_PD[passage_rows[pair]], 0.0
        for d in range(len(passage_D)):
            score += query_D[d] * np.float64(passage_D[d])
        out[pair] = score


def _lexical_scores(
    query_offsets: Any, query_ids: Any, query_values: Any, passage_offsets: Any, passage_ids: Any, passage_values: Any,
    query_rows: Any, passage_rows: Any, no_weights: Any, out: Any,
) -> None:  # fmt: skip
    # The query's weights are spread over a dense array, which is kept while the pairs have the same query.
    weights, current = no_weights.copy(), -1
    for pair in range(len(query_rows)):
        if query_rows[pair] != current:
            if current >= 0:
                weights[query_ids[query_offsets[current] : query_offsets[current + 1]]] = 0.0
            current = query_rows[pair]
            for k in range(query_offsets[current], query_offsets[current + 1]):
                weights[query_ids[k]] = query_values[k]
        score, row = 0.0, passage_rows[pair]
        for k in range(passage_offsets[row], passage_offsets[row + 1]):
            if passage_ids[k] < len(weights):
                score += weights[passage_ids[k]] * np.float64(passage_values[k])
        out[pair] = score


def _all_lexical_scores(
    query_offsets: Any, query_ids: Any, query_values: Any, passage_offsets: Any, passage_ids: Any, passage_values: Any,
    no_tokens: Any, out: Any,
) -> None:  # fmt: skip
    # 1. Count the postings of each token that a query has. Tokens beyond the table share its last entry.
    is_query_token, starts, last = no_tokens.copy(), np.zeros(len(no_tokens) + 1, np.int64), len(no_tokens) - 1
    is_query_token[query_ids] = True
    for token in passage_ids:
        starts[min(token, last) + 1] += is_query_token[min(token, last)]
    starts = starts.cumsum()
    # 2. Fill the postings, token by token. Tokens without a query go to one slot behind all others, again and again:
    # a branch that the processor cannot predict would cost more than the useless store.
    ends = np.where(is_query_token, starts[:-1], starts[-1])
    posting_rows, posting_values = np.empty(starts[-1] + 1, np.uint32), np.empty(starts[-1] + 1, np.float32)
    for row in range(len(passage_offsets) - 1):
        for k in range(passage_offsets[row], passage_offsets[row + 1]):
            token = min(passage_ids[k], last)
            posting_rows[ends[token]], posting_values[ends[token]] = row, passage_values[k]
            ends[token] += is_query_token[token]
    # 3. Add each query's postings to the scores of all passages.
    sums = np.empty(len(passage_offsets) - 1)
    for query in range(len(query_offsets) - 1):
        sums[:] = 0.0
        for k in range(query_offsets[query], query_offsets[query + 1]):
            value = np.float64(query_values[k])
            for j in range(starts[query_ids[k]], starts[query_ids[k] + 1]):
                sums[posting_rows[j]] += value * np.float64(posting_values[j])
        out[query] = sums


def _late_scores(
    query_offsets: Any, tokens_ID: Any, passage_offsets: Any, vectors_TD: Any, products_TI: Any, errors_I: Any, out: Any
) -> None:
    threshold_I = np.empty(len(errors_I), np.float32)
    count_I, last_I = np.empty(len(errors_I), np.int32), np.empty(len(errors_I), np.int32)
    for passage in range(len(passage_offsets) - 1):
        first, end = passage_offsets[passage], passage_offsets[passage + 1]
        if first == end:
            continue
        # 1. The greatest product of each query token, less twice the error (and a little, as this is rounded, too).
        threshold_I[:] = -np.inf
        for t in range(first, end):
            for i in range(len(threshold_I)):
                threshold_I[i] = products_TI[t, i] if products_TI[t, i] > threshold_I[i] else threshold_I[i]
        for i in range(len(threshold_I)):
            threshold_I[i] -= np.float32(2.001) * errors_I[i]
            count_I[i], last_I[i] = 0, first - 1
        # 2. The number of passage tokens that reach the threshold, mostly one, and the last of these.
        for t in range(first, end):
            for i in range(len(threshold_I)):
                count_I[i] += np.int32(products_TI[t, i] >= threshold_I[i])
                last_I[i] = np.int32(t) if products_TI[t, i] >= threshold_I[i] else last_I[i]
        # 3. The products of these tokens in double precision, and the sum of their maxima.
        for query in range(len(query_offsets) - 1):
            score = 0.0
            for i in range(query_offsets[query], query_offsets[query + 1]):
                best = -np.inf
                for t in range(last_I[i] if count_I[i] == 1 else first, last_I[i] + 1):
                    if products_TI[t, i] >= threshold_I[i]:
                        product = 0.0
                        for d in range(vectors_TD.shape[1]):
                            product += tokens_ID[i, d] * np.float64(vectors_TD[t, d])
                        best = max(best, product)
                score += best
            out[query, passage] = score


def _matching_scores(
    query_offsets: Any, query_ids: Any, tokens_ID: Any, passage_offsets: Any, passage_ids: Any, vectors_TD: Any,
    query_rows: Any, passage_rows: Any, out: Any,
) -> None:  # fmt: skip
    for pair in range(len(query_rows)):
        score, query, passage = 0.0, query_rows[pair], passage_rows[pair]
        for i in range(query_offsets[query], query_offsets[query + 1]):
            best = 0.0
            for t in range(passage_offsets[passage], passage_offsets[passage + 1]):
                if passage_ids[t] == query_ids[i]:
                    product = 0.0
                    for d in range(vectors_TD.shape[1]):
                        product += tokens_ID[i, d] * np.float64(vectors_TD[t, d])
                    best = max(best, product)
            score += best
        out[pair] = score


def _segment_maxima(values_TI: Any, offsets: Any, out: Any) -> None:
    for segment in range(len(offsets) - 1):
        for t in range(offsets[segment], offsets[segment + 1]):
            first = t == offsets[segment]
            for i in range(values_TI.shape[1]):
                greater = first or values_TI[t, i] > out[segment, i]
                out[segment, i] = values_TI[t, i] if greater else out[segment, i]


def _append_keys(bounds_QP: Any, ranks_P: Any, keys_QM: Any, counts_Q: Any) -> None:
    is_candidate, threshold_bits = np.zeros(64, np.uint8), np.zeros(1, np.int32)
    eights, threshold = is_candidate.view(np.uint64), threshold_bits.view(np.float32)
    for query in range(len(counts_Q)):
        bounds, keys, count = bounds_QP[query], keys_QM[query], counts_Q[query]
        least, bits = keys[0], bounds.view(np.int32)
        # The threshold's score: the upper 32 bits of its key, with `top_k._monotonic` undone.
        threshold_bits[0] = (least >> 32) if least >= 0 else (least >> 32) ^ 0x7FFFFFFF
        # Most bounds are far below the threshold. 64 comparisons without a branch become vector instructions, and
        # eight results at a time are then skipped as one integer that is 0.
        for start in range(0, len(bounds), len(is_candidate)):
            block = bounds[start : start + len(is_candidate)]
            for p in range(len(is_candidate)):
                is_candidate[p] = p < len(block) and block[p] >= threshold[0]
            for eight in range(len(eights)):
                if eights[eight] == 0:
                    continue
                for p in range(8 * eight, 8 * eight + 8):
                    if is_candidate[p]:
                        high = np.int64(bits[start + p]) if block[p] != 0.0 else 0  # -0.0 compares equal to 0.0
                        keys[count] = ((high if high >= 0 else high ^ 0x7FFFFFFF) << 32) | ranks_P[start + p]
                        count += keys[count] > least
        counts_Q[query] = count


def _arrays(rows: SparseRows) -> tuple[NDArray[Any], ...]:
    return rows.offsets, rows.ids, rows.values


@cache
def _compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    import numba

    # "reassoc" and "contract" allow partial sums in vector registers; a compiled kernel always splits a sum the same
    # way. No other liberty with floats is taken: infinities and NaN keep their meaning.
    jit = numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
    compiled: Callable[..., None] = jit(kernel)
    return compiled


def _filled(kernel: Callable[..., None], *arrays: NDArray[Any], out: Out) -> Out:
    """Run a kernel on read-only views: memory-mapped arrays are read-only, so that one compilation serves all."""
    views = [np.ascontiguousarray(array).view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    _compiled(kernel)(*views, out)
    return out
