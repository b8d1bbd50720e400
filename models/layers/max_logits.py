"""The maximum logit of each WordPiece token over a text's positions, without storing the logits.

max_l (h_l . e_v + b_v) is the pooling of SPLADE v2 (Formal et al.) and of CAME (section 3.2.2, equation 4). Storing all
logits [N, V] of a batch would take most of the memory and time of a model with a lexical view. Here only the logits of
a block of texts exist at a time. The gradient of a maximum goes to one position, the first in case of a tie. These
positions are stored, so the backward pass is two weighted sums of rows, without a matrix product. If a softmax over
the vocabulary or the MLM loss needs the logits anyway, `max_of_logits` takes them (`models.papers.dup_mae`).

No text is treated on its own and no count is read from the device, so a GPU is never waited for.

Shape suffixes: B batch, L length, H hidden, V vocabulary, N pooled positions of all texts, T texts of a block, K pairs
of a text and a token that have a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

MAX_ELEMENTS = 2**25
"""The number of logits that are in memory at a time: 128 MB in float32."""


def max_logits(
    states_NH: Tensor, words_VH: Tensor, pool_BL: Tensor, bias_V: Tensor | None = None, *,
    computed_BL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the maximum logit of each WordPiece token over a text's pooled positions [B, V], in float32.

    `states_NH` has the computed positions, text by text, by default the pooled ones only. A text without pooled
    positions gets 0 everywhere. Under autocast products have its precision; gradients are summed in the precision of
    the weights.
    """
    pooled_B1 = pool_BL.any(1, keepdim=True)
    computed_BL = pool_BL if computed_BL is None else computed_BL
    maxima_BV: Tensor = _Products.apply(states_NH, words_VH, pool_BL, computed_BL, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    biased_BV = maxima_BV if bias_V is None else maxima_BV + bias_V.to(maxima_BV.dtype)
    return torch.where(pooled_B1, biased_BV, 0.0)


def max_of_logits(logits_NV: Tensor, pool_BL: Tensor) -> Tensor:
    """Return the maxima of given logits as `max_logits` does, in their precision."""
    maxima_BV: Tensor = _Maxima.apply(logits_NV, pool_BL)  # type: ignore[no-untyped-call]
    return torch.where(pool_BL.any(1, keepdim=True), maxima_BV, 0.0)


class _Products(torch.autograd.Function):
    """Maxima of the products of states and words, and the positions of these maxima if gradients are needed."""

    @staticmethod
    def forward(
        ctx: Any, states_NH: Tensor, words_VH: Tensor, pool_BL: Tensor, computed_BL: Tensor, with_gradient: bool
    ) -> Tensor:
        device, vocabulary = states_NH.device.type, len(words_VH)
        wide = torch.promote_types(words_VH.dtype, torch.float)
        maxima_BV = states_NH.new_zeros(len(pool_BL), vocabulary, dtype=wide)
        positions_BV = maxima_BV.new_zeros(maxima_BV.shape if with_gradient else (0, 0), dtype=torch.int32)
        ctx.save_for_backward(states_NH, words_VH, positions_BV)
        lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else words_VH.dtype
        lower_NH, lower_VH = states_NH.to(lower), words_VH.to(lower)  # once, not for each block
        for texts, positions_TL in _blocks(pool_BL, computed_BL, len(states_NH), vocabulary):
            products_VTL = (lower_VH @ lower_NH[positions_TL.flatten()].T).unflatten(1, positions_TL.shape)
            if with_gradient:
                maxima_VT, columns_VT = products_VTL.max(2)
                maxima_BV[texts], positions_BV[texts] = maxima_VT.T, positions_TL.gather(1, columns_VT.T).int()
            else:
                maxima_BV[texts] = products_VTL.amax(2).T
        return maxima_BV

    @staticmethod
    def backward(ctx: Any, gradient_BV: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        states_NH, words_VH, positions_BV = ctx.saved_tensors
        to_states = to_words = None
        with torch.autocast(states_NH.device.type, enabled=False):
            texts_K, tokens_K = _with_gradient(gradient_BV)
            positions_K = positions_BV[texts_K, tokens_K]
            gradient_K = gradient_BV[texts_K, tokens_K].to(words_VH.dtype)
            if ctx.needs_input_grad[1]:
                states_NH = states_NH.to(words_VH.dtype)
                to_words = _weighted_sums(states_NH, positions_K, gradient_K, tokens_K.int(), len(words_VH))
            if ctx.needs_input_grad[0]:
                order_K = positions_K.argsort(stable=True)
                to_states = _weighted_sums(
                    words_VH, tokens_K[order_K].int(), gradient_K[order_K], positions_K[order_K], len(states_NH)
                ).to(ctx.saved_tensors[0].dtype)
        return to_states, to_words, None, None, None


class _Maxima(torch.autograd.Function):
    """Maxima of logits, and the positions of these maxima."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, pool_BL: Tensor) -> Tensor:
        maxima_BV = logits_NV.new_zeros(len(pool_BL), logits_NV.shape[1])
        ctx.positions_BV = torch.zeros_like(maxima_BV, dtype=torch.long)
        ctx.num_positions = len(logits_NV)
        for texts, positions_TL in _blocks(pool_BL, pool_BL, *logits_NV.shape):
            maxima_BV[texts], columns_TV = logits_NV[positions_TL].max(1)
            ctx.positions_BV[texts] = positions_TL.gather(1, columns_TV)
        return maxima_BV

    @staticmethod
    def backward(ctx: Any, gradient_BV: Tensor) -> tuple[Tensor, None]:
        gradient_NV = gradient_BV.new_zeros(ctx.num_positions, gradient_BV.shape[1])
        if ctx.num_positions:
            # A text without pooled positions has a gradient of 0 and the position of another text: it adds nothing.
            gradient_NV.scatter_add_(0, ctx.positions_BV, gradient_BV)
        return gradient_NV, None


def _blocks(
    pool_BL: Tensor, computed_BL: Tensor, num_positions: int, vocabulary: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of texts with their positions [T, L] among the N computed; none if there are no positions.

    What is not pooled is replaced by the text's first pooled position, which leaves the maximum as it is. A text
    without pooled positions has that of another text; its maxima are not used.
    """
    if not num_positions:
        return
    numbers_BL = computed_BL.flatten().cumsum(0).view(pool_BL.shape) - 1
    firsts_B1 = numbers_BL.masked_fill(~pool_BL, num_positions - 1).amin(1, keepdim=True)
    positions_BL = torch.where(pool_BL, numbers_BL, firsts_B1)
    size = max(1, MAX_ELEMENTS // (vocabulary * pool_BL.shape[1]))
    for start in range(0, len(pool_BL), size):
        texts = slice(start, start + size)
        yield texts, positions_BL[texts]


def _with_gradient(gradient_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return text and token [K] of the maxima that have a gradient, ordered by token; on a GPU of all maxima.

    Few have one where only the largest weights of a passage are kept. A GPU would be waited for to count them.
    """
    if gradient_BV.device.type == "cpu":
        tokens_K, texts_K = gradient_BV.T.nonzero(as_tuple=True)
        return texts_K, tokens_K
    batch, vocabulary = gradient_BV.shape
    numbers_K = torch.arange(batch * vocabulary, device=gradient_BV.device)
    return numbers_K % batch, numbers_K // batch


def _weighted_sums(rows_RH: Tensor, selected_K: Tensor, weights_K: Tensor, targets_K: Tensor, size: int) -> Tensor:
    """Return sums [size, H] of selected rows, each times its weight, by ascending target; 0 for a target without."""
    offsets = torch.searchsorted(targets_K, torch.arange(size, device=targets_K.device, dtype=targets_K.dtype))
    return embedding_bag(selected_K, rows_RH, offsets.int(), mode="sum", per_sample_weights=weights_K)
