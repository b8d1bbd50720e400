"""Lexical maxima as they were computed before: text by text, with a second product in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def max_logits(
    states_NH: Tensor, words_VH: Tensor, pool_BL: Tensor, bias_V: Tensor | None = None, *,
    computed_BL: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return what `models.layers.max_logits.max_logits` returns; `states_NH` has the pooled positions only."""
    assert computed_BL is None or torch.equal(computed_BL, pool_BL)
    counts_B = pool_BL.sum(1)
    maxima_BV: Tensor = _Maxima.apply(states_NH, words_VH, counts_B.tolist())  # type: ignore[no-untyped-call]
    return maxima_BV if bias_V is None else maxima_BV + (counts_B > 0)[:, None] * bias_V.to(maxima_BV.dtype)


class _Maxima(torch.autograd.Function):
    """Maxima of products; the backward pass computes the positions of maxima that have a gradient once more."""

    @staticmethod
    def forward(ctx: Any, states_NH: Tensor, words_VH: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(states_NH, words_VH)
        ctx.counts = counts
        maxima_BV = states_NH.new_zeros(len(counts), len(words_VH))
        for row_V, states_LH in zip(maxima_BV, states_NH.split(counts), strict=True):
            row_V.copy_((words_VH @ states_LH.T).amax(1))
        return maxima_BV

    @staticmethod
    def backward(ctx: Any, gradient_BV: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        states_NH, words_VH = ctx.saved_tensors
        to_states, to_words = torch.zeros_like(states_NH), torch.zeros_like(words_VH)
        start = 0
        for gradient_V, count in zip(gradient_BV, ctx.counts, strict=True):
            tokens_K = gradient_V.nonzero()[:, 0]
            states_LH, words_KH = states_NH[start : start + count], words_VH[tokens_K]
            positions_K = (words_KH @ states_LH.T).argmax(1)
            gradient_K1 = gradient_V[tokens_K, None]
            to_words.index_add_(0, tokens_K, gradient_K1 * states_LH[positions_K])
            to_states.index_add_(0, start + positions_K, gradient_K1 * words_KH)
            start += count
        return to_states, to_words, None
