"""Upper bounds of scores in single precision: exact search orders passages by these before it scores them.

A bound is the float32 score plus the most that rounding can have taken away, whatever the order of the sums. Where two
texts share no WordPiece token, and where exact matching finds no match, the bound is exactly 0, as the score is: all
such passages are ties, and none of them has to be scored. `coarse` bounds are looser, and faster on CPUs that multiply
bfloat16.

Shape suffixes: Q queries, P passages of a tile, I tokens of queries, T tokens of passages, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.retrieval.exact_search.double_scores import MEMORY_BYTES, PRODUCTS_PER_BLOCK, Similarity, representation
from tasks.retrieval.exact_search.matmul import (
    UNIT,
    factors_with_errors,
    inner_products,
    multiplies_bfloat16,
    on_device,
)
from tasks.retrieval.exact_search.numba_kernels import all_lexical_scores, segment_maxima

Bounds = Callable[["DeviceTile"], Tensor]
"""(a tile of passages) -> upper bounds of the scores of all queries, [Q, P]."""


@dataclass(frozen=True)
class DeviceTile:
    """The representations of a tile of passages, with what the bounds need of them on the device."""

    rows: Encoded
    """Memory-mapped; only its offsets are read where the arrays are on an accelerator."""
    dense: tuple[Tensor, Tensor] | None = None
    """Vectors [P, D] and their norms [P]."""
    lexical: tuple[Tensor, Tensor, Tensor] | None = None
    """Offsets [P + 1], ids, and values in double precision; only on an accelerator."""
    late: tuple[Tensor, Tensor, Tensor] | None = None
    """Vectors [T, D], their norms [T] and ids [T]."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """The size of its tensors."""
        return sum(tensor.nbytes for view in (self.dense, self.lexical, self.late) if view for tensor in view)


def is_accelerator(device: torch.device) -> bool:
    """Return whether the device has a memory of its own, to which passages are copied."""
    return device.type != "cpu"


def tile_on_device(rows: Encoded, similarity: Similarity, device: torch.device, *, coarse: bool) -> DeviceTile:
    """Copy to the device what the bounds need of the passages' views; on the CPU their arrays are used as they are."""

    def with_norms(vectors: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        vectors_PD = on_device(vectors, device)
        norms_P = vectors_PD.norm(dim=1)
        is_rounded = coarse and is_accelerator(device) and multiplies_bfloat16(device)
        return vectors_PD.bfloat16() if is_rounded else vectors_PD, norms_P

    views: dict[str, Any] = {}
    for view in similarity.weights:
        values = representation(rows, view)
        if view == "dense":
            views[view] = with_norms(values)
        elif view == "late":
            views[view] = (*with_norms(values.vectors), on_device(values.ids, device))
        elif is_accelerator(device):
            offsets, ids = on_device(values.offsets, device), on_device(values.ids, device)
            views[view] = (offsets, ids.long(), on_device(values.values, device).double())
    return DeviceTile(rows, **views)


def upper_bounds(queries: Encoded, similarity: Similarity, device: torch.device, *, coarse: bool) -> Bounds:
    """Return a function that bounds the float32 scores of these queries with a tile of passages from above."""
    views = {view: _view_bounds(queries, view, similarity, device, coarse) for view in similarity.weights}
    (first_view, first_weight), *others = similarity.weights.items()
    if not others and first_weight == 1:
        return views[first_view]

    def bounds(tile: DeviceTile) -> Tensor:
        bounds_QP = torch.zeros((len(queries), len(tile)), device=device)
        magnitudes_QP = torch.zeros_like(bounds_QP)
        for view, weight in similarity.weights.items():
            weighted_QP = weight * views[view](tile)
            bounds_QP += weighted_QP
            magnitudes_QP += weighted_QP.abs_()
        # At most three products and two additions are rounded, each by half a UNIT of the sum of magnitudes.
        return bounds_QP.add_(magnitudes_QP, alpha=4 * UNIT)

    return bounds


def _view_bounds(queries: Encoded, view: str, similarity: Similarity, device: torch.device, coarse: bool) -> Bounds:
    if view == "dense":
        return _dense_bounds(representation(queries, view), device, coarse)
    if view == "lexical":
        rows = representation(queries, view)
        return _device_lexical_bounds(rows, device) if is_accelerator(device) else _lexical_bounds(rows)
    return _late_bounds(representation(queries, view), similarity.exact_match, device, coarse)


def _dense_bounds(queries: NDArray[np.float32], device: torch.device, coarse: bool) -> Bounds:
    """Add the error bound of each product, errors_Q |p|, to the product."""
    queries_QD, errors_Q = factors_with_errors(on_device(queries, device), coarse=coarse)

    def bounds(tile: DeviceTile) -> Tensor:
        assert tile.dense is not None
        passages_PD, norms_P = tile.dense
        return inner_products(queries_QD, passages_PD, coarse=coarse).addr_(errors_Q, norms_P)

    return bounds


def _lexical_bounds(queries: SparseRows) -> Bounds:
    """Add one unit in the last place to the scores: they are summed in double precision, but in another order."""

    def bounds(tile: DeviceTile) -> Tensor:
        scores_QP = torch.from_numpy(all_lexical_scores(queries, representation(tile.rows, "lexical")))
        return scores_QP.add(scores_QP.abs(), alpha=UNIT)

    return bounds


def _device_lexical_bounds(queries: SparseRows, device: torch.device) -> Bounds:
    """Do the same with tensor operations: weights [V, Q] of the queries, summed by the passages' tokens.

    The sums are in double precision, too, and exactly 0 where no token is shared. The last row of the weights is that
    of all tokens that no query has.
    """
    num_tokens = _num_rows_of_weights(queries)
    query_of_weight = np.repeat(np.arange(len(queries)), np.diff(queries.offsets))
    weights_VQ = torch.zeros((num_tokens, len(queries)), dtype=torch.float64, device=device)
    cells = on_device(queries.ids.astype(np.int64) * len(queries) + query_of_weight, device)
    weights_VQ.view(-1).scatter_(0, cells, on_device(queries.values, device).double())

    def bounds(tile: DeviceTile) -> Tensor:
        assert tile.lexical is not None
        offsets, ids, values = tile.lexical
        scores_PQ = torch.nn.functional.embedding_bag(
            ids.clamp(max=num_tokens - 1), weights_VQ, offsets, mode="sum", per_sample_weights=values,
            include_last_offset=True,
        )  # fmt: skip
        scores_QP = scores_PQ.float().T.contiguous()
        return scores_QP.add_(scores_QP.abs(), alpha=UNIT)

    return bounds


def weights_bytes(queries: SparseRows) -> int:
    """Return the bytes of a query's weights of all tokens, which an accelerator has in memory for each query."""
    return _num_rows_of_weights(queries) * torch.float64.itemsize


def _num_rows_of_weights(queries: SparseRows) -> int:
    return int(queries.ids.max(initial=-1)) + 2


def _late_bounds(queries: TokenRows, exact_match: bool, device: torch.device, coarse: bool) -> Bounds:
    """Take MaxSim of token-level bounds: a maximum, and a sum, of upper bounds are upper bounds.

    With exact matching, pairs of different WordPiece tokens count 0, and so do negative similarities.
    """
    tokens_ID, errors_I = factors_with_errors(on_device(queries.vectors, device), coarse=coarse)
    ids_I = on_device(queries.ids, device)
    query_I = on_device(np.repeat(np.arange(len(queries)), np.diff(queries.offsets)), device)
    longest_query = int(np.diff(queries.offsets).max(initial=0))
    products = max(MEMORY_BYTES // 8, free_bytes(device) // 64) if is_accelerator(device) else PRODUCTS_PER_BLOCK

    def bounds(tile: DeviceTile) -> Tensor:
        assert tile.late is not None
        all_rows = representation(tile.rows, "late")
        mean_tokens = max(1, len(all_rows.vectors) // max(1, len(all_rows)))
        step = max(1, products // (mean_tokens * max(1, len(tokens_ID))))
        sums_2PQ = torch.zeros((2, len(all_rows), len(queries)), device=device)  # of bounds, and of their magnitudes
        for start in range(0, len(all_rows), step):
            stop = min(start + step, len(all_rows))
            cut = slice(int(all_rows.offsets[start]), int(all_rows.offsets[stop]))
            passages_TD, norms_T, ids_T = (tensor[cut] for tensor in tile.late)
            bounds_TI = inner_products(passages_TD, tokens_ID, coarse=coarse).addr_(norms_T, errors_I)
            if exact_match:
                bounds_TI.masked_fill_(ids_T[:, None] != ids_I, 0.0).clamp_(min=0.0)
            maxima_PI = _passage_maxima(bounds_TI, all_rows.rows(start, stop))
            sums_2PQ[:, start:stop].index_add_(2, query_I, torch.stack([maxima_PI, maxima_PI.abs()]))
        return (sums_2PQ[0] + (longest_query + 4) * UNIT * sums_2PQ[1]).T

    return bounds


def free_bytes(device: torch.device) -> int:
    """Return the free memory of an accelerator; where it does not report it, and on a CPU, a small number."""
    if device.type != "cuda":
        return 16 * MEMORY_BYTES
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def _passage_maxima(values_TI: Tensor, rows: TokenRows) -> Tensor:
    """Return the maximum over the tokens of each passage, [P, I]; 0 for a passage without tokens."""
    if not is_accelerator(values_TI.device):
        return torch.from_numpy(segment_maxima(values_TI.numpy(), rows.offsets))
    passage_T = on_device(np.repeat(np.arange(len(rows)), np.diff(rows.offsets)), values_TI.device)
    maxima_PI = torch.zeros((len(rows), values_TI.shape[1]), device=values_TI.device)
    return maxima_PI.scatter_reduce_(0, passage_T[:, None].expand_as(values_TI), values_TI, "amax", include_self=False)
