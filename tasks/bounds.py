"""Upper bounds of scores in single precision, with torch: what exact search sorts passages by, before it scores them.

A bound is the score as single precision has it and a little more: at least what rounding can have taken away, whatever
the order of the sums. It is 0, as the score is, where two texts share no word and no weight is below 0, and where exact
matches find none: all passages without a match are then equals, and none of them needs to be scored.

Shape suffixes: Q queries, P passages of a tile, I tokens of queries, T tokens of passages, D dimension, V vocabulary,
E views.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.vectors import Encoded, SparseRows, TokenRows, Vectors
from tasks.rescoring import BYTES, Similarity, in_columns, num_columns, part

UNIT = float(np.finfo(np.float32).eps)  # twice what one rounding can take away, so that bounds have room

Bounds = Callable[[Any], Tensor]
"""What is stored of a tile of passages -> for each query the most that each can score, [Q, P]."""


def upper_bounds(queries: Encoded, similarity: Similarity, device: torch.device) -> Bounds:
    """What bounds the similarity of these queries and tiles of passages from above, rounding to float32 included."""
    views = {view: _view_bounds(queries, view, similarity, device) for view in similarity.weights}

    def bounds(tile: Encoded) -> Tensor:
        bound_QP = torch.zeros((len(queries), len(tile)), device=device)
        size_QP = torch.zeros_like(bound_QP)
        for view, weight in similarity.weights.items():
            scores_QP = weight * views[view](part(tile, view))
            bound_QP += scores_QP
            size_QP += scores_QP.abs_()
        return bound_QP.add_(size_QP, alpha=4 * UNIT)

    return bounds


def _view_bounds(queries: Encoded, view: str, similarity: Similarity, device: torch.device) -> Bounds:
    if view == "dense":
        return _dense(part(queries, view), device)
    if view == "lexical":
        return _lexical(part(queries, view), device)
    return _late(part(queries, view), similarity.exact_match, device)


def _dense(queries: Vectors, device: torch.device) -> Bounds:
    """q p + c |q| |p|: a sum of D products in any order is off by less, since |sum of |q_i p_i|| <= |q| |p|."""
    queries_QD = _tensor(queries, device)
    lengths_Q1 = queries_QD.norm(dim=1, keepdim=True) * (queries_QD.shape[1] + 4) * UNIT

    def bounds(passages: Vectors) -> Tensor:
        passages_PD = _tensor(passages, device)
        return torch.addmm(lengths_Q1 * passages_PD.norm(dim=1), queries_QD, passages_PD.T)

    return bounds


def _lexical(queries: SparseRows, device: torch.device) -> Bounds:
    """As dense; but where no weight is below 0, the sum itself is what rounding is a share of, and 0 stays 0."""
    columns = num_columns(queries)
    queries_VQ = _tensor(in_columns(queries, columns).T, device)
    signed, lengths_Q1 = bool((queries_VQ < 0).any()), queries_VQ.norm(dim=0)[:, None]

    def bounds(rows: SparseRows) -> Tensor:
        sums_QP = (_matrix(rows, columns, device) @ queries_VQ).T
        share = (int(np.diff(rows.offsets).max(initial=0)) + 4) * UNIT
        if not signed and rows.values.min(initial=0.0) >= 0:
            return sums_QP * (1 + share)
        numbers = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
        lengths_P = np.sqrt(np.bincount(numbers, rows.values.astype(np.float64) ** 2, minlength=len(rows)))
        rounding_QP: Tensor = lengths_Q1 * share * _tensor(lengths_P.astype(np.float32), device)
        return sums_QP + rounding_QP

    return bounds


def _matrix(rows: SparseRows, columns: int, device: torch.device) -> Tensor:
    """[P, columns + 1] as torch's compressed sparse rows; word pieces that no query has are in the last column."""
    offsets, ids = rows.offsets.astype(np.int32), np.minimum(rows.ids, columns)
    parts = (_tensor(offsets, device), _tensor(ids, device), _tensor(rows.values, device))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        matrix: Tensor = torch.sparse_csr_tensor(*parts, size=(len(rows), columns + 1), check_invariants=False)
    return matrix


def _late(queries: TokenRows, exact_match: bool, device: torch.device) -> Bounds:
    """Dense bounds for pairs of tokens, then MaxSim. With exact matches, 0 where no word piece is shared."""
    tokens_ID = _with_lengths(_tensor(queries.vectors, device), (queries.vectors.shape[1] + 8) * UNIT)
    ids_I = _tensor(queries.ids, device)
    longest = int(np.diff(queries.offsets).max(initial=0))

    def bounds(rows: TokenRows) -> Tensor:
        passages_TD, counts = _with_lengths(_tensor(rows.vectors, device), 1.0), np.diff(rows.offsets)
        place_T = _tensor(np.repeat(np.arange(len(rows)), counts), device)
        empty_P1, ids_T = _tensor(counts == 0, device)[:, None], _tensor(rows.ids, device)
        sums_QP = torch.empty((len(queries), len(rows)), device=device)
        step = max(1, BYTES // (8 * max(1, longest) * max(1, len(place_T))))
        for start in range(0, len(queries), step):
            offsets = queries.offsets[start : start + step + 1]
            some = slice(int(offsets[0]), int(offsets[-1]))
            products_TI = passages_TD @ tokens_ID[some].T
            if exact_match:
                products_TI.masked_fill_(ids_T[:, None] != ids_I[some], 0.0).clamp_(min=0.0)
            best_PI = torch.full((len(rows), products_TI.shape[1]), -torch.inf, device=device)
            best_PI.scatter_reduce_(0, place_T[:, None].expand_as(products_TI), products_TI, "amax")
            best_PI.masked_fill_(empty_P1, 0.0)
            number_I = _tensor(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), device)
            both = torch.stack([best_PI, best_PI.abs()])
            sums = torch.zeros((2, len(rows), len(offsets) - 1), device=device).index_add_(2, number_I, both)
            sums_QP[start : start + step] = (sums[0] + (longest + 4) * UNIT * sums[1]).T
        return sums_QP

    return bounds


def _with_lengths(vectors_ND: Tensor, share: float) -> Tensor:
    """[N, D + 1], each vector with a share of its length."""
    return torch.cat([vectors_ND, share * vectors_ND.norm(dim=1, keepdim=True)], dim=1)


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.tensor(array).to(device)
