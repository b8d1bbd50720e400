"""A T5 with random weights that never ends a query, to measure how fast one of its shape writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tasks.pseudo_queries.generators.load_model import number_format
from tasks.pseudo_queries.generators.seq2seq import Seq2SeqState, start
from tasks.pseudo_queries.generators.shared_cross_attention import enable_shared_cross_attention


class RandomT5:
    """A decoder for `sampler.sample`, without a tokenizer."""

    def __init__(self, config: dict[str, Any], dtype: str, device: torch.device) -> None:
        """`config` has entries of a T5's config.json; `dtype` is the setting of `Generation`."""
        self.ends, self.stops = list[int](), list[int]()
        model: Any = T5ForConditionalGeneration(T5Config(**config))
        self.model = model.to(device, number_format(dtype, device)).eval()
        self.shares = enable_shared_cross_attention(self.model.get_decoder())

    def start(self, ids: Sequence[list[int]]) -> tuple[Seq2SeqState, Tensor]:
        """Return a row for each input, and the logits of its first token. [B, V]"""
        return start(self.model, self.shares, ids, [0], 0)
