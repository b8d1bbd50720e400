"""ModernBERT (Warner et al. 2024): pre-norm layers with rotary positions, of which most attend to a window only.

Shape suffixes: N real tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from models.layers.adapter import Adapter
from models.layers.packed_attention import sliding_window
from models.layers.unpadding import Packing


class Family(Adapter):
    body, stack = "model", "layers"
    embedding_norm, embedding_dropout = "norm", "drop"
    feed_forward, feed_forward_norm = ("mlp",), "mlp_norm"
    names: ClassVar[Mapping[str, str]] = {
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }

    @classmethod
    def unattended_limit(cls, folder: Path) -> int | None:
        # The second token is always real: [CLS] and [SEP] are two. One that is out of its window sees nothing there.
        return int(cls._configuration(folder).sliding_window) + 2

    def keep(self, layers: Sequence[int] | None) -> None:
        if layers is not None and layers[0] != 0:
            raise ValueError(f"layers: ModernBERT's first layer has no normalisation, so expected 0, found {layers[0]}")
        types = self.network.config.layer_types
        super().keep(layers)
        if layers is not None:
            self.network.config.layer_types = [types[number] for number in layers]

    def set_dropout(self, rate: float) -> None:
        for layer in self.layers:
            attention = layer.get_submodule("attn")
            if isinstance(attention.out_drop, nn.Identity):  # as `transformers` builds it for a rate of 0
                attention.out_drop = nn.Dropout(rate)
        super().set_dropout(rate)

    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        hidden_1NH, config = hidden_NH[None], self.network.config
        positions_1N = (packing.positions_N % packing.shape[1])[None]
        packings = {"full_attention": packing, "sliding_attention": sliding_window(packing, config.sliding_window)}
        rotary = {kind: self.encoder.rotary_emb(hidden_1NH, positions_1N, kind) for kind in set(config.layer_types)}
        for layer in layers:
            kind = str(layer.attention_type)
            hidden_1NH = layer(hidden_1NH, attention_mask=packings[kind], position_embeddings=rotary[kind])
        return hidden_1NH[0]

    def final_norm(self, hidden_NH: Tensor) -> Tensor:
        normed_NH: Tensor = self.encoder.final_norm(hidden_NH)
        return normed_NH

    def transform(self, hidden_NH: Tensor) -> Tensor:
        transformed_NH: Tensor = self.network.head(hidden_NH)
        return transformed_NH
