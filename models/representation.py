"""What an encoder makes of a batch of texts: up to three views of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Role = Literal["query", "passage"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True)
class Representation:
    """Views of B texts; a view that the encoder has not is None."""

    dense: Tensor | None = None
    """[B, D]"""
    lexical: Tensor | None = None
    """[B, V], a weight for each word piece."""
    tokens: Tensor | None = None
    """[B, L, D]"""
    token_mask: Tensor | None = None
    """[B, L], which of the tokens are compared."""
    token_ids: Tensor | None = None
    """[B, L], which word piece each of them is, where only equal ones are compared."""


def pool(hidden_BLH: Tensor, mask_BL: Tensor, pooling: Pooling) -> Tensor:
    """One vector a text [B, H]: the hidden state of [CLS], as in the papers, or the mean over its tokens."""
    if pooling == "cls":
        return hidden_BLH[:, 0]
    weights_BL1 = mask_BL[..., None].to(hidden_BLH.dtype)
    return (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1)
