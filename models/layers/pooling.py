"""What one vector is made of a text's hidden states, by the names that sentence-transformers gives it.

The first tokens may be skipped, those of a prompt; padding, at the end, never counts.

Shape suffixes: B batch, L length, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def first(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The first token's, which is [CLS] in most."""
    return hidden_BLH[:, skipped]


def last(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The last token's."""
    return hidden_BLH[torch.arange(len(hidden_BLH), device=hidden_BLH.device), mask_BL.sum(1) - 1]


def mean(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The mean over the tokens."""
    sums_BH, counts_B1 = summed(hidden_BLH, mask_BL, skipped)
    return sums_BH / counts_B1


def mean_by_root(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The sum over the tokens by the root of their number."""
    sums_BH, counts_B1 = summed(hidden_BLH, mask_BL, skipped)
    return sums_BH / counts_B1.sqrt()


def mean_by_place(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The mean in which the n-th token counts n times (Muennighoff 2022, SGPT, equation 3)."""
    places_L1 = torch.arange(1, mask_BL.shape[1] + 1, device=mask_BL.device, dtype=hidden_BLH.dtype)[:, None]
    weights_BL1 = kept(mask_BL, skipped)[..., None] * places_L1
    return (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1)


def largest(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> Tensor:
    """The largest value of each dimension."""
    return hidden_BLH.masked_fill(~kept(mask_BL, skipped)[..., None], float("-inf")).amax(1)


def summed(hidden_BLH: Tensor, mask_BL: Tensor, skipped: int) -> tuple[Tensor, Tensor]:
    """The sum over the tokens [B, H], and how many they are [B, 1]."""
    mask_BL1 = kept(mask_BL, skipped)[..., None].to(hidden_BLH.dtype)
    return (hidden_BLH * mask_BL1).sum(1), mask_BL1.sum(1)


def kept(mask_BL: Tensor, skipped: int) -> Tensor:
    """The mask without the first tokens, those of a prompt."""
    return mask_BL & (torch.arange(mask_BL.shape[1], device=mask_BL.device) >= skipped)


POOLINGS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "cls": first, "max": largest, "mean": mean, "mean_sqrt_len_tokens": mean_by_root, "weightedmean": mean_by_place,
    "lasttoken": last,
}  # fmt: skip
