"""What a BERT makes of the first token of each text, [CLS], where nothing else of its last layer is read.

There only the keys and values of the other tokens are computed: of the 12 H^2 multiplications that a layer takes for a
token 2 H^2. A network of six layers is spared 14 of 100 so, one of twelve 7, forward and backward.

Shape suffixes: B batch, L length, H hidden, N real tokens of all texts.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from models.layers.bert import Bert, Layer
from models.layers.unpadding import Packing


def cls_states(model: Bert, ids_BL: Tensor, mask_BL: Tensor, types_BL: Tensor | None = None) -> Tensor:
    """[B, H], what `model(ids, mask, types)[:, 0]` is, but for rounding; dropout draws for less."""
    packing = Packing(mask_BL)
    hidden_NH = packing.packed(model.embeddings(ids_BL, types_BL))
    *layers, last = model.encoder.layer
    for layer in layers:
        hidden_NH = layer(hidden_NH, packing)
    return _last(cast(Layer, last), hidden_NH, packing, Packing(mask_BL[:, :1], packing.visible))


def _last(layer: Layer, hidden_NH: Tensor, packing: Packing, firsts: Packing) -> Tensor:
    """A layer, as `Layer.forward`, whose rows are first tokens."""
    first_BH, attention = hidden_NH.index_select(0, packing.starts_B), layer.attention
    mixed_BH = attention.output(attention.self.attend(first_BH, hidden_NH, rows=firsts, columns=packing), first_BH)
    return cast(Tensor, layer.output(layer.intermediate(mixed_BH), mixed_BH))
