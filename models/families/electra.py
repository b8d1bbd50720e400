"""ELECTRA (Clark et al. 2020): BERT, pre-trained to detect replaced tokens; small models have narrower embeddings."""

from __future__ import annotations

from torch import Tensor

from models.layers.adapter import Adapter


class Family(Adapter):
    body = "electra"

    def embed_sums(self, sums_BLH: Tensor) -> Tensor:
        embedded_BLE = super().embed_sums(sums_BLH)
        project = getattr(self.encoder, "embeddings_project", None)
        return embedded_BLE if project is None else project(embedded_BLE)

    def transform(self, hidden_NH: Tensor) -> Tensor:
        transformed_NE: Tensor = self.network.generator_predictions(hidden_NH)
        return transformed_NE
