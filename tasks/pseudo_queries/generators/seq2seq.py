"""Hugging Face encoder-decoders, such as T5 and BART, as text generators.

Shape suffixes: B texts, L length, R rows of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from tasks.pseudo_queries.generators.load_model import ModelSource, check_length, first, open_model, open_tokenizer
from tasks.pseudo_queries.generators.shared_cross_attention import Reading, enable_shared_cross_attention, reading

READ_SHARE = 0.75  # with fewer texts that a row still reads, the others are dropped


@dataclass
class Seq2SeqState:
    """The partly decoded rows of a batch.

    If the decoder supports it (`shared_cross_attention`), the rows of a text share its encoded keys and values;
    otherwise each row has a copy.
    """

    model: Any
    shares: bool
    hidden: Tensor
    """[texts, length, width], the encoded texts."""
    mask: Tensor
    """[texts, length]"""
    cache: Any = None
    """Keys and values of the decoded tokens and of the encoded text."""
    reading: Reading | None = None
    """The text of each row, if rows share texts."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append these tokens and return the logits of the next token. [R, V]"""
        with reading(self.reading):
            output = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=self.hidden), attention_mask=self.mask,
                decoder_input_ids=tokens, past_key_values=self.cache, use_cache=True,
            )  # fmt: skip
        self.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits

    def repeat(self, times: int) -> None:
        """Replace each row by `times` neighbouring copies."""
        if self.shares:
            rows = torch.arange(len(self.mask) * times, device=self.mask.device)
            self.reading = Reading(self.cache.cross_attention_cache, rows, times)
            self.cache.self_attention_cache.batch_repeat_interleave(times)
        else:
            self.hidden, self.mask = (tensor.repeat_interleave(times, dim=0) for tensor in (self.hidden, self.mask))
            self.cache.batch_repeat_interleave(times)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        if self.reading is None:
            self.hidden, self.mask = self.hidden[rows], self.mask[rows]
            self.cache.batch_select_indices(rows)
            return
        self.cache.self_attention_cache.batch_select_indices(rows)
        self.reading = replace(self.reading, slots=self.reading.slots[rows])
        self._drop_texts(self.reading)

    def _drop_texts(self, now: Reading) -> None:
        """Drop the texts that no row reads once they are a quarter of all, since dropping copies the others."""
        of_rows = now.slots // now.samples
        texts, number = of_rows.unique(return_inverse=True)
        if len(texts) > READ_SHARE * len(self.mask):
            return
        self.hidden, self.mask = self.hidden[texts], self.mask[texts]
        now.cache.batch_select_indices(texts)
        self.reading = replace(now, slots=number * now.samples + now.slots % now.samples)


def start(
    model: Any, shares: bool, ids: Sequence[list[int]], starts: list[int], pad: int
) -> tuple[Seq2SeqState, Tensor]:
    """Encode texts with a model, and return the logits of the first token of each after `starts`. [B, V]"""
    length = max(map(len, ids))
    ids_BL = torch.tensor([row + [pad] * (length - len(row)) for row in ids], device=model.device)
    mask_BL = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids], device=model.device)
    hidden = model.get_encoder()(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
    state = Seq2SeqState(model, shares, hidden, mask_BL)
    return state, state.step(torch.tensor([starts] * len(ids), device=model.device))


class Seq2Seq:
    """An encoder-decoder on its device; each text is read with `prefix` before it, and truncated at its end."""

    def __init__(self, source: ModelSource, *, prefix: str, max_tokens: int, max_new_tokens: int) -> None:
        checkpoint = source.checkpoint
        self.device, self.prefix, self.max_tokens = source.device, prefix, max_tokens
        self.tokenizer = open_tokenizer(checkpoint)
        self.model = open_model(source)
        self.shares = enable_shared_cross_attention(self.model.get_decoder())
        check_length(checkpoint, self.model.get_encoder().config, max_tokens, "input_max_tokens")
        check_length(checkpoint, self.model.get_decoder().config, max_new_tokens + 1, "max_new_tokens + 1")
        settings, config = self.model.generation_config, self.model.config
        start = first(settings.decoder_start_token_id, config.decoder_start_token_id, settings.bos_token_id)
        forced = first(settings.forced_bos_token_id)  # the token that BART always generates first
        self.starts = [start] if forced is None else [start, forced]
        self.pad = first(settings.pad_token_id, self.tokenizer.pad_token_id, 0)
        end = first(settings.eos_token_id, config.eos_token_id, self.tokenizer.eos_token_id)
        self.ends: list[int] = [end] if isinstance(end, int) else list(end or ())
        self.stops: list[int] = []

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of prefix and text."""
        inputs = [self.prefix + text for text in texts]
        ids: list[list[int]] = self.tokenizer(inputs, truncation=True, max_length=self.max_tokens)["input_ids"]
        return ids

    def start(self, ids: Sequence[list[int]]) -> tuple[Seq2SeqState, Tensor]:
        """Encode the texts, and return the logits of the first token of each. [B, V]"""
        return start(self.model, self.shares, ids, self.starts, self.pad)

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """Return the texts of generated token ids."""
        texts: list[str] = self.tokenizer.batch_decode(samples, skip_special_tokens=True)
        return texts
