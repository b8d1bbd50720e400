"""Upper bounds of scores in single precision: what exact search sorts passages by, before it scores them.

A bound is the score as single precision has it and a little more: at least what rounding can have taken away, whatever
the order of the sums. It is 0, as the score is, where two texts share no word, and where exact matches find none: all
passages without a match are then equals, and none of them needs to be scored. `coarse` bounds are further away, and
are had sooner where the device is fast at products of fewer digits.

Shape suffixes: Q queries, P passages of a tile, I tokens of queries, T tokens of passages, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.vectors import Encoded, SparseRows, TokenRows, Vectors
from tasks.retrieval.exact_search.double_scores import BLOCK, BYTES, Similarity, part
from tasks.retrieval.exact_search.matmul import UNIT, factors, on_device, products
from tasks.retrieval.exact_search.numba_kernels import all_lexical_scores, greatest

Bounds = Callable[[Any], Tensor]
"""What is stored of a tile of passages -> for each query the most that each can score, [Q, P]."""


def upper_bounds(queries: Encoded, similarity: Similarity, device: torch.device, *, coarse: bool) -> Bounds:
    """What bounds the similarity of these queries and tiles of passages from above, rounding to float32 included."""
    views = {view: _view_bounds(queries, view, similarity, device, coarse) for view in similarity.weights}

    def bounds(tile: Encoded) -> Tensor:
        bound_QP = torch.zeros((len(queries), len(tile)), device=device)
        size_QP = torch.zeros_like(bound_QP)
        for view, weight in similarity.weights.items():
            scores_QP = weight * views[view](part(tile, view))
            bound_QP += scores_QP
            size_QP += scores_QP.abs_()
        return bound_QP.add_(size_QP, alpha=4 * UNIT)

    (view, weight), *others = similarity.weights.items()
    return bounds if others or weight != 1 else lambda tile: views[view](part(tile, view))


def _view_bounds(queries: Encoded, view: str, similarity: Similarity, device: torch.device, coarse: bool) -> Bounds:
    if view == "dense":
        return _dense(part(queries, view), device, coarse)
    if view == "lexical":
        return _lexical(part(queries, view), device)
    return _late(part(queries, view), similarity.exact_match, device, coarse)


def _dense(queries: Vectors, device: torch.device, coarse: bool) -> Bounds:
    """q p and the share of |q| |p| that it may be off by."""
    queries_QD, errors_Q = factors(on_device(queries, device), coarse=coarse)

    def bounds(passages: Vectors) -> Tensor:
        passages_PD = on_device(passages, device)
        return products(queries_QD, passages_PD, coarse=coarse).addr_(errors_Q, passages_PD.norm(dim=1))

    return bounds


def _lexical(queries: SparseRows, device: torch.device) -> Bounds:
    """The scores themselves, but for a last bit: adding up only what two texts share leaves little to save."""

    def bounds(passages: SparseRows) -> Tensor:
        scores_QP = on_device(all_lexical_scores(queries, passages), device)
        return scores_QP.add(scores_QP.abs(), alpha=UNIT)

    return bounds


def _late(queries: TokenRows, exact_match: bool, device: torch.device, coarse: bool) -> Bounds:
    """Dense bounds for pairs of tokens, then MaxSim. With exact matches, 0 where no word piece is shared."""
    tokens_ID, errors_I = factors(on_device(queries.vectors, device), coarse=coarse)
    ids_I = on_device(queries.ids, device)
    number_I = on_device(np.repeat(np.arange(len(queries)), np.diff(queries.offsets)), device)
    longest = int(np.diff(queries.offsets).max(initial=0))

    def best(rows: TokenRows) -> Tensor:
        """The best of each passage's tokens, [P, I]."""
        passages_TD = on_device(rows.vectors, device)
        bounds_TI = products(passages_TD, tokens_ID, coarse=coarse).addr_(passages_TD.norm(dim=1), errors_I)
        if exact_match:
            bounds_TI.masked_fill_(on_device(rows.ids, device)[:, None] != ids_I, 0.0).clamp_(min=0.0)
        return _greatest(bounds_TI, rows)

    def bounds(rows: TokenRows) -> Tensor:
        length = max(1, len(rows.vectors) // max(1, len(rows)))
        step = max(1, (BLOCK if device.type == "cpu" else BYTES // 8) // (length * max(1, len(tokens_ID))))
        starts = range(0, len(rows), step)
        sums_2PQ = torch.zeros((2, len(rows), len(queries)), device=device)
        for start in starts:
            best_PI = best(rows.rows(start, min(start + step, len(rows))))
            sums_2PQ[:, start : start + step].index_add_(2, number_I, torch.stack([best_PI, best_PI.abs()]))
        return (sums_2PQ[0] + (longest + 4) * UNIT * sums_2PQ[1]).T

    return bounds


def _greatest(values_TI: Tensor, rows: TokenRows) -> Tensor:
    """Of the values of each passage's tokens the greatest, [P, I]; 0 where it has none."""
    if values_TI.device.type == "cpu":
        return torch.from_numpy(greatest(values_TI.numpy(), rows.offsets))
    place_T = on_device(np.repeat(np.arange(len(rows)), np.diff(rows.offsets)), values_TI.device)
    greatest_PI = torch.zeros((len(rows), values_TI.shape[1]), device=values_TI.device)
    return greatest_PI.scatter_reduce_(0, place_T[:, None].expand_as(values_TI), values_TI, "amax", include_self=False)
