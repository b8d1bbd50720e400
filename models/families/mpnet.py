"""MPNet (Song et al. 2020): BERT without token types, with a relative position bias that all layers share.

Its attention cannot be exchanged, so layers compute padded rows.

Shape suffixes: B batch, L length, A attention heads, N real tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from models.layers.adapter import Adapter
from models.layers.unpadding import Packing


class Family(Adapter):
    body = "mpnet"

    @classmethod
    def _first_position(cls, own: Any) -> int:
        return 2  # the model of `transformers` takes 1 for padding, whatever its configuration says

    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        hidden_BLH = packing.padded(hidden_NH)
        bias_BALL = self.encoder.encoder.compute_position_bias(hidden_BLH)
        zero, lowest = torch.zeros((), device=bias_BALL.device), torch.finfo(bias_BALL.dtype).min
        mask = None if packing.visible is None else torch.where(packing.visible, zero, lowest)  # added to the scores
        for layer in layers:
            hidden_BLH = layer(hidden_BLH, mask, position_bias=bias_BALL)[0]
        return packing.packed(hidden_BLH)

    def transform(self, hidden_NH: Tensor) -> Tensor:
        head = self.network.lm_head
        transformed_NH: Tensor = head.layer_norm(gelu(head.dense(hidden_NH)))
        return transformed_NH
