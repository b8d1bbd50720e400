"""Attention for layers of `transformers` that compute the real tokens of a batch as one row without padding.

`transformers` lets a model choose its attention by name (`AttentionInterface`). Its layers pass their argument
`attention_mask` on to that function, so here it is a `Packing`: only the attention itself uses padded rows.

Shape suffixes: B batch, L length, A attention heads, D size of a head, N real tokens of all texts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from models.layers.unpadding import Packing

NAME = "packed"
"""The name of the attention in a configuration that is in memory; it is not saved."""


def register() -> None:
    """Make the attention known to `transformers` under its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)


def packed_attention(
    module: nn.Module, query_1AND: Tensor, key_1AND: Tensor, value_1AND: Tensor, attention_mask: Packing, *,
    scaling: float, dropout: float = 0.0, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Return the attention output [1, N, A, D] of one row of packed texts; no weights are returned."""

    def rows(packed_1AND: Tensor) -> Tensor:
        padded_BLAD = attention_mask.padded(packed_1AND[0].transpose(0, 1))
        return padded_BLAD.transpose(1, 2)

    mixed_BALD = scaled_dot_product_attention(
        rows(query_1AND), rows(key_1AND), rows(value_1AND), attn_mask=attention_mask.visible, dropout_p=dropout,
        scale=scaling,
    )  # fmt: skip
    return attention_mask.packed(mixed_BALD.transpose(1, 2))[None], None


def sliding_window(packing: Packing, distance: int) -> Packing:
    """Return a packing whose tokens see only tokens up to a distance in their text.

    A row that would see nothing sees itself. Such rows are padding, which is not used, but the softmax over no column
    is 0 / 0, and a NaN in one row would be in the gradient of every parameter.
    """
    positions_L = torch.arange(packing.shape[1], device=packing.positions_N.device)
    near_LL = (positions_L[:, None] - positions_L).abs() <= distance
    visible_B1LL = near_LL[None, None] if packing.visible is None else near_LL & packing.visible
    itself_LL = torch.eye(packing.shape[1], dtype=torch.bool, device=near_LL.device)
    return packing.with_visible(visible_B1LL | (itself_LL & ~visible_B1LL.any(-1, keepdim=True)))
