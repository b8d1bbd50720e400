"""Attention for layers of `transformers` that compute the real tokens of a batch as one row without padding.

`transformers` lets a model choose its attention by name (`AttentionInterface`). Its layers pass their argument
`attention_mask` on to that function, so here it is a `Packing`.

Shape suffixes: L length, A attention heads, D size of a head, N real tokens of all texts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.layers.attention import attention
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

    mixed_NAD = attention(
        query_1AND[0].transpose(0, 1), key_1AND[0].transpose(0, 1), value_1AND[0].transpose(0, 1), rows=attention_mask,
        columns=attention_mask, dropout=dropout, scale=scaling,
    )  # fmt: skip
    return mixed_NAD[None], None


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
