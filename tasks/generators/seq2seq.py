"""Hugging Face encoder-decoders, T5 or BART, that write a text for a text.

Shape suffixes: B texts, L length, R rows of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from tasks.generators.opening import check_length, first, open_model, open_tokenizer


@dataclass
class Encoded:
    """The rows of a batch, as far as they are written."""

    model: Any
    hidden: Tensor
    """[rows, length, width], the encoded texts."""
    mask: Tensor
    """[rows, length]"""
    cache: Any
    """Keys and values of the steps so far and of the encoded text."""

    def step(self, tokens: Tensor) -> Tensor:
        """The logits of the token that comes after these, which are new. [R, V]"""
        found = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden), attention_mask=self.mask,
            decoder_input_ids=tokens, past_key_values=self.cache, use_cache=True,
        )  # fmt: skip
        self.cache = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits

    def repeat(self, times: int) -> None:
        """Make each row `times` rows that stand together."""
        self.hidden = self.hidden.repeat_interleave(times, dim=0)
        self.mask = self.mask.repeat_interleave(times, dim=0)
        self.cache.batch_repeat_interleave(times)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.hidden, self.mask = self.hidden[rows], self.mask[rows]
        self.cache.batch_select_indices(rows)


class Seq2Seq:
    """An encoder-decoder on its device; `prefix` is put before each text, which is cut at its end."""

    def __init__(
        self, checkpoint: Path, config: Any, dtype: str, device: torch.device, *, prefix: str, max_tokens: int,
        max_new_tokens: int,
    ) -> None:  # fmt: skip
        self.device, self.prefix, self.max_tokens = device, prefix, max_tokens
        self.tokenizer = open_tokenizer(checkpoint)
        self.model = open_model(checkpoint, config, dtype, device)
        check_length(checkpoint, self.model.get_encoder().config, max_tokens, "input_max_tokens")
        check_length(checkpoint, self.model.get_decoder().config, max_new_tokens + 1, "max_new_tokens + 1")
        settings, config = self.model.generation_config, self.model.config
        start = first(settings.decoder_start_token_id, config.decoder_start_token_id, settings.bos_token_id)
        forced = first(settings.forced_bos_token_id)  # what BART always writes first
        self.starts = [start] if forced is None else [start, forced]
        self.pad = first(settings.pad_token_id, self.tokenizer.pad_token_id, 0)
        end = first(settings.eos_token_id, config.eos_token_id, self.tokenizer.eos_token_id)
        self.ends: list[int] = [end] if isinstance(end, int) else list(end or ())
        self.stops: list[int] = []

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prefix and text."""
        whole = [self.prefix + text for text in texts]
        ids: list[list[int]] = self.tokenizer(whole, truncation=True, max_length=self.max_tokens)["input_ids"]
        return ids

    def start(self, ids: Sequence[list[int]]) -> tuple[Encoded, Tensor]:
        """The encoded texts, and the logits of the first token of each. [B, V]"""
        length = max(len(each) for each in ids)
        ids_BL = torch.tensor([each + [self.pad] * (length - len(each)) for each in ids], device=self.device)
        mask_BL = torch.tensor([[1] * len(each) + [0] * (length - len(each)) for each in ids], device=self.device)
        hidden = self.model.get_encoder()(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        state = Encoded(self.model, hidden, mask_BL, None)
        return state, state.step(torch.tensor([self.starts] * len(ids), device=self.device))

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """What was written."""
        texts: list[str] = self.tokenizer.batch_decode(samples, skip_special_tokens=True)
        return texts
