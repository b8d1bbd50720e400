"""What a text says most strongly of each WordPiece token: the largest of its positions' logits, without the logits.

max_l (h_l . e_v + b_v), the pooling of SPLADE v2 (Formal et al.) and of CAME (section 3.2.2, equation 4). All logits
[N, V] of a batch are what a network with a lexical view takes most of its memory and time for. Here a text's are there
only until their maxima are known. A maximum's gradient goes to one position alone, so pieces that a training has no
use for (below an activation's threshold, not among those that a passage keeps) cost nothing on the way back; where the
maximum was is looked up again for the pieces that are left. Where all are left, as under a softmax over the
vocabulary, keeping the logits is faster (`models.papers.dup_mae`).

Shape suffixes: B batch, L length, H hidden, V vocabulary, N pooled positions of all texts, K pieces with a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def word_maxima(states_NH: Tensor, words_VH: Tensor, pool_BL: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """[B, V], the largest logit of each WordPiece token among a text's pooled positions, in single precision.

    `states_NH` has the pooled positions, text by text. A text without any gets 0 everywhere. Under autocast the
    products are of its precision; sums of gradients are of the weights' own.
    """
    counts_B = pool_BL.sum(1)
    maxima_BV: Tensor = _Maxima.apply(states_NH, words_VH, counts_B.tolist())  # type: ignore[no-untyped-call]
    return maxima_BV if bias_V is None else maxima_BV + (counts_B > 0)[:, None] * bias_V.to(maxima_BV.dtype)


class _Maxima(torch.autograd.Function):
    """The maxima of products, text by text."""

    @staticmethod
    def forward(ctx: Any, states_NH: Tensor, words_VH: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(states_NH, words_VH)
        ctx.counts, device = counts, states_NH.device.type
        wide = torch.promote_types(words_VH.dtype, torch.float)
        maxima_BV = states_NH.new_zeros(len(counts), len(words_VH), dtype=wide)
        lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else words_VH.dtype
        words_VH = words_VH.to(lower)  # once, not for each text
        for row_V, states_LH in zip(maxima_BV, states_NH.to(lower).split(counts), strict=True):
            if len(states_LH):
                row_V.copy_((words_VH @ states_LH.T).amax(1))
        return maxima_BV

    @staticmethod
    def backward(ctx: Any, gradient_BV: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        states_NH, words_VH = ctx.saved_tensors
        to_states, to_words = (
            torch.zeros_like(each) if needed else None
            for each, needed in zip((states_NH, words_VH), ctx.needs_input_grad, strict=False)
        )
        start = 0
        with torch.autocast(states_NH.device.type, enabled=False):
            for gradient_V, count in zip(gradient_BV, ctx.counts, strict=True):
                pieces_K = gradient_V.nonzero()[:, 0]
                if count and len(pieces_K):
                    states_LH, words_KH = states_NH[start : start + count].to(words_VH.dtype), words_VH[pieces_K]
                    places_K = (words_KH @ states_LH.T).argmax(1)
                    gradient_K1 = gradient_V[pieces_K, None].to(words_VH.dtype)
                    if to_words is not None:
                        to_words.index_add_(0, pieces_K, gradient_K1 * states_LH[places_K])
                    if to_states is not None:
                        to_states.index_add_(0, start + places_K, (gradient_K1 * words_KH).to(to_states.dtype))
                start += count
        return to_states, to_words, None
