"""RoBERTa (Liu et al. 2019): BERT's layers, with positions that begin after the id of the padding token."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import gelu

from models.layers.adapter import Adapter


class Family(Adapter):
    body = "roberta"
    begins_after_padding = True

    def transform(self, hidden_NH: Tensor) -> Tensor:
        head = self.network.lm_head
        transformed_NH: Tensor = head.layer_norm(gelu(head.dense(hidden_NH)))
        return transformed_NH
