"""The maximum logit of each WordPiece token over a text's positions, without storing the logits.

max_l (h_l . e_v + b_v) is the pooling of SPLADE v2 (Formal et al.) and of CAME (section 3.2.2, equation 4). Storing all
logits [N, V] of a batch would take most of the memory and time of a model with a lexical view. Here the logits of one
text exist at a time. The gradient of a maximum goes to one position, and is 0 for tokens that are below the
activation's threshold or not among a passage's largest: the backward pass skips these and recomputes the position of
the maximum for the others. If all tokens have a gradient, as under a softmax over the vocabulary, storing the logits is
faster (`models.papers.dup_mae`).

Shape suffixes: B batch, L length, H hidden, V vocabulary, N pooled positions of all texts, K tokens with a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def max_logits(states_NH: Tensor, words_VH: Tensor, pool_BL: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """Return the maximum logit of each WordPiece token over a text's pooled positions [B, V], in float32.

    `states_NH` has the pooled positions, text by text. A text without pooled positions gets 0 everywhere. Under
    autocast products have its precision; gradients are summed in the precision of the weights.
    """
    counts_B = pool_BL.sum(1)
    maxima_BV: Tensor = _Maxima.apply(states_NH, words_VH, counts_B.tolist())  # type: ignore[no-untyped-call]
    return maxima_BV if bias_V is None else maxima_BV + (counts_B > 0)[:, None] * bias_V.to(maxima_BV.dtype)


class _Maxima(torch.autograd.Function):
    """Maxima of products, computed text by text."""

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
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip((states_NH, words_VH), ctx.needs_input_grad, strict=False)
        )
        start = 0
        with torch.autocast(states_NH.device.type, enabled=False):
            for gradient_V, count in zip(gradient_BV, ctx.counts, strict=True):
                tokens_K = gradient_V.nonzero()[:, 0]
                if count and len(tokens_K):
                    states_LH, words_KH = states_NH[start : start + count].to(words_VH.dtype), words_VH[tokens_K]
                    positions_K = (words_KH @ states_LH.T).argmax(1)
                    gradient_K1 = gradient_V[tokens_K, None].to(words_VH.dtype)
                    if to_words is not None:
                        to_words.index_add_(0, tokens_K, gradient_K1 * states_LH[positions_K])
                    if to_states is not None:
                        to_states.index_add_(0, start + positions_K, (gradient_K1 * words_KH).to(to_states.dtype))
                start += count
        return to_states, to_words, None
