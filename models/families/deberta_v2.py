"""DeBERTa (He et al. 2021), versions 2 and 3: attention with embeddings of relative positions that all layers share.

Its attention cannot be exchanged, so layers compute padded rows.

Shape suffixes: B batch, L length, N real tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor, nn

from models.layers.adapter import Adapter
from models.layers.bert_config import CONFIG
from models.layers.unpadding import Packing
from models.model_files import UnusableModel


class Family(Adapter):
    body = "deberta"

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        if self.encoder.encoder.conv is not None or self.encoder.embeddings.embed_proj is not None:
            raise ValueError("a DeBERTa with a convolution or narrow embeddings is not supported; use a DeBERTa-v3")

    @classmethod
    def load(cls, folder: Path, *, layers: Sequence[int] | None = None) -> Self:
        # Without `legacy` in config.json, `transformers` takes it as true and drops the newer head without an error.
        if cls._configuration(folder).legacy and any(map(_has_newer_head, folder.glob("model*.safetensors"))):
            raise UnusableModel(f'{folder / CONFIG}: the weights have the head lm_predictions; add "legacy": false')
        return super().load(folder, layers=layers)

    @classmethod
    def unattended_limit(cls, folder: Path) -> int | None:
        return 0  # a token that none attends to attends to none in `transformers`, where the mask hides its row too

    def run(self, layers: Iterable[nn.Module], hidden_NH: Tensor, packing: Packing) -> Tensor:
        stack, hidden_BLH = self.encoder.encoder, packing.padded(hidden_NH)
        batch, length = packing.shape
        visible = torch.ones((), dtype=torch.bool) if packing.visible is None else packing.visible
        mask_B1LL = visible.to(hidden_BLH.device).expand(batch, 1, length, length)
        shared = {"relative_pos": stack.get_rel_pos(hidden_BLH), "rel_embeddings": stack.get_rel_embedding()}
        for layer in layers:
            hidden_BLH = layer(hidden_BLH, mask_B1LL, **shared)[0]
        return packing.packed(hidden_BLH)

    @property
    def output(self) -> tuple[Tensor, Tensor | None]:
        head = self._head()
        return self.words if not self.network.legacy else head.decoder.weight, head.bias

    def transform(self, hidden_NH: Tensor) -> Tensor:
        head = self._head()
        if self.network.legacy:
            transformed_NH: Tensor = head.transform(hidden_NH)
            return transformed_NH
        normed_NH: Tensor = head.LayerNorm(head.transform_act_fn(head.dense(hidden_NH)))
        return normed_NH

    def _head(self) -> Any:
        network = self.network
        return network.cls.predictions if network.legacy else network.lm_predictions.lm_head


def _has_newer_head(path: Path) -> bool:
    with safe_open(path, "pt") as weights:
        return any(name.startswith("lm_predictions.") for name in weights.keys())  # noqa: SIM118  # no mapping
