"""The representations of a batch of texts, called views: one dense vector, lexical weights, and a vector per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Role = Literal["query", "passage"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True)
class Representation:
    """The views of B texts; None for a view that the encoder does not have."""

    dense: Tensor | None = None
    """[B, D]"""
    lexical: Tensor | None = None
    """[B, V], a weight for each WordPiece token of the vocabulary."""
    tokens: Tensor | None = None
    """[B, L, D], a vector for each token."""
    token_mask: Tensor | None = None
    """[B, L], True at the tokens that are compared."""
    token_ids: Tensor | None = None
    """[B, L], token ids, if only equal tokens are compared (COIL)."""


def pool(hidden_BLH: Tensor, mask_BL: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector per text [B, H]: the hidden state of [CLS], as in the papers, or the mean over its tokens."""
    if pooling == "cls":
        return hidden_BLH[:, 0]
    weights_BL1 = mask_BL[..., None].to(hidden_BLH.dtype)
    return (hidden_BLH * weights_BL1).sum(1) / weights_BL1.sum(1)


def inner_products(queries_QD: Tensor, passages_PD: Tensor) -> Tensor:
    """Return the inner products [Q, P] of all queries and passages, in float32 even under autocast."""
    with torch.autocast(queries_QD.device.type, enabled=False):
        return queries_QD.float() @ passages_PD.float().T
