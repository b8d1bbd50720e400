"""Upper bounds of scores in single precision: exact search orders passages by these before it scores them.

A bound is the float32 score plus the most that rounding can have taken away, whatever the order of the sums. Where two
texts share no WordPiece token, and where exact matching finds no match, the bound is exactly 0, as the score is: all
such passages are ties, and none of them has to be scored. `coarse` bounds are looser, and faster on CPUs that multiply
bfloat16.

Shape suffixes: Q queries, P passages of a tile, I tokens of queries, T tokens of passages, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.vectors import Encoded, SparseRows, TokenRows, Vectors
from tasks.retrieval.exact_search.double_scores import MEMORY_BYTES, PRODUCTS_PER_BLOCK, Similarity, representation
from tasks.retrieval.exact_search.matmul import UNIT, factors_with_errors, inner_products, on_device
from tasks.retrieval.exact_search.numba_kernels import all_lexical_scores, segment_maxima

Bounds = Callable[[Any], Tensor]
"""(one representation of a tile of passages) -> upper bounds of the scores of all queries, [Q, P]."""


def upper_bounds(queries: Encoded, similarity: Similarity, device: torch.device, *, coarse: bool) -> Bounds:
    """Return a function that bounds the float32 scores of these queries with a tile of passages from above."""
    views = {view: _view_bounds(queries, view, similarity, device, coarse) for view in similarity.weights}
    (first_view, first_weight), *others = similarity.weights.items()
    if not others and first_weight == 1:
        return lambda tile: views[first_view](representation(tile, first_view))

    def bounds(tile: Encoded) -> Tensor:
        bounds_QP = torch.zeros((len(queries), len(tile)), device=device)
        magnitudes_QP = torch.zeros_like(bounds_QP)
        for view, weight in similarity.weights.items():
            weighted_QP = weight * views[view](representation(tile, view))
            bounds_QP += weighted_QP
            magnitudes_QP += weighted_QP.abs_()
        # At most three products and two additions are rounded, each by half a UNIT of the sum of magnitudes.
        return bounds_QP.add_(magnitudes_QP, alpha=4 * UNIT)

    return bounds


def _view_bounds(queries: Encoded, view: str, similarity: Similarity, device: torch.device, coarse: bool) -> Bounds:
    if view == "dense":
        return _dense_bounds(representation(queries, view), device, coarse)
    if view == "lexical":
        return _lexical_bounds(representation(queries, view), device)
    return _late_bounds(representation(queries, view), similarity.exact_match, device, coarse)


def _dense_bounds(queries: Vectors, device: torch.device, coarse: bool) -> Bounds:
    """Add the error bound of each product, errors_Q |p|, to the product."""
    queries_QD, errors_Q = factors_with_errors(on_device(queries, device), coarse=coarse)

    def bounds(passages: Vectors) -> Tensor:
        passages_PD = on_device(passages, device)
        products_QP = inner_products(queries_QD, passages_PD, coarse=coarse)
        return products_QP.addr_(errors_Q, passages_PD.norm(dim=1))

    return bounds


def _lexical_bounds(queries: SparseRows, device: torch.device) -> Bounds:
    """Add one unit in the last place to the scores: they are summed in double precision, but in another order."""

    def bounds(passages: SparseRows) -> Tensor:
        scores_QP = on_device(all_lexical_scores(queries, passages), device)
        return scores_QP.add(scores_QP.abs(), alpha=UNIT)

    return bounds


def _late_bounds(queries: TokenRows, exact_match: bool, device: torch.device, coarse: bool) -> Bounds:
    """Take MaxSim of token-level bounds: a maximum, and a sum, of upper bounds are upper bounds.

    With exact matching, pairs of different WordPiece tokens count 0, and so do negative similarities.
    """
    tokens_ID, errors_I = factors_with_errors(on_device(queries.vectors, device), coarse=coarse)
    ids_I = on_device(queries.ids, device)
    query_I = on_device(np.repeat(np.arange(len(queries)), np.diff(queries.offsets)), device)
    longest_query = int(np.diff(queries.offsets).max(initial=0))

    def token_maxima(rows: TokenRows) -> Tensor:
        """Return the greatest bound over each passage's tokens, [P, I]."""
        passages_TD = on_device(rows.vectors, device)
        products_TI = inner_products(passages_TD, tokens_ID, coarse=coarse)
        bounds_TI = products_TI.addr_(passages_TD.norm(dim=1), errors_I)
        if exact_match:
            bounds_TI.masked_fill_(on_device(rows.ids, device)[:, None] != ids_I, 0.0).clamp_(min=0.0)
        return _passage_maxima(bounds_TI, rows)

    def bounds(rows: TokenRows) -> Tensor:
        mean_tokens = max(1, len(rows.vectors) // max(1, len(rows)))
        products = PRODUCTS_PER_BLOCK if device.type == "cpu" else MEMORY_BYTES // 8
        step = max(1, products // (mean_tokens * max(1, len(tokens_ID))))
        sums_2PQ = torch.zeros((2, len(rows), len(queries)), device=device)  # of bounds, and of their magnitudes
        for start in range(0, len(rows), step):
            maxima_PI = token_maxima(rows.rows(start, min(start + step, len(rows))))
            sums_2PQ[:, start : start + step].index_add_(2, query_I, torch.stack([maxima_PI, maxima_PI.abs()]))
        return (sums_2PQ[0] + (longest_query + 4) * UNIT * sums_2PQ[1]).T

    return bounds


def _passage_maxima(values_TI: Tensor, rows: TokenRows) -> Tensor:
    """Return the maximum over the tokens of each passage, [P, I]; 0 for a passage without tokens."""
    if values_TI.device.type == "cpu":
        return torch.from_numpy(segment_maxima(values_TI.numpy(), rows.offsets))
    passage_T = on_device(np.repeat(np.arange(len(rows)), np.diff(rows.offsets)), values_TI.device)
    maxima_PI = torch.zeros((len(rows), values_TI.shape[1]), device=values_TI.device)
    return maxima_PI.scatter_reduce_(0, passage_T[:, None].expand_as(values_TI), values_TI, "amax", include_self=False)
