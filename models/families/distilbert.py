"""DistilBERT (Sanh et al. 2019): BERT without token types, with every second layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from models.layers.adapter import Adapter


class Family(Adapter):
    body, stack = "distilbert", "transformer.layer"
    feed_forward, feed_forward_norm = ("ffn",), "output_layer_norm"
    names: ClassVar[Mapping[str, str]] = {
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }

    def transform(self, hidden_NH: Tensor) -> Tensor:
        network = self.network
        transformed_NH: Tensor = network.vocab_layer_norm(network.activation(network.vocab_transform(hidden_NH)))
        return transformed_NH
