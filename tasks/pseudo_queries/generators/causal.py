"""Hugging Face causal language models, which go on with a prompt that holds the passage.

Shape suffixes: B texts, L length, R rows of a batch, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.errors import UserError
from tasks.pseudo_queries.generators.load_model import check_length, first, open_model, open_tokenizer

PASSAGE = "{passage}"


@dataclass
class Read:
    """The rows of a batch: prompts, and what has been written after them."""

    model: Any
    takes: frozenset[str]
    """What the model can be given."""
    mask: Tensor
    """[rows, length]"""
    cache: Any
    """Keys and values of them."""

    def step(self, tokens: Tensor) -> Tensor:
        """The logits of the token that comes after these, which are new. [R, V]"""
        if self.cache is not None:  # the prompts' mask is given
            self.mask = torch.cat([self.mask, self.mask.new_ones(tokens.shape)], dim=1)
        positions = (self.mask.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        given = {"position_ids": positions, "logits_to_keep": 1}  # not every model knows them
        found = self.model(
            input_ids=tokens, attention_mask=self.mask, past_key_values=self.cache, use_cache=True,
            **{name: value for name, value in given.items() if name in self.takes},
        )  # fmt: skip
        self.cache = found.past_key_values
        logits: Tensor = found.logits[:, -1]
        return logits

    def repeat(self, times: int) -> None:
        """Make each row `times` rows that stand together."""
        self.mask = self.mask.repeat_interleave(times, dim=0)
        self.cache.batch_repeat_interleave(times)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.mask = self.mask[rows]
        self.cache.batch_select_indices(rows)


class Causal:
    """A causal language model on its device; a query ends at the model's end or at the first token with `stop` in it.

    The prompt is run once for all samples of a passage. Prompts stand at the right of a batch, so that all go on at
    the same place, and each has positions of its own from 0.
    """

    def __init__(
        self, checkpoint: Path, config: Any, dtype: str, device: torch.device, *, prompt: str, stop: str | None,
        max_tokens: int, max_new_tokens: int,
    ) -> None:  # fmt: skip
        self.device, self.prompt, self.stop, self.max_tokens = device, Prompt(prompt, max_tokens), stop, max_tokens
        check_length(checkpoint, config, max_tokens + max_new_tokens, "input_max_tokens + max_new_tokens")
        self.tokenizer = open_tokenizer(checkpoint)
        if not self.tokenizer.is_fast:
            raise UserError(f"{checkpoint}: expected a tokenizer.json, which a prompt's passage is cut with; add it")
        self.model = open_model(checkpoint, config, dtype, device)
        self.takes = frozenset(inspect.signature(self.model.forward).parameters)
        if "past_key_values" not in self.takes:
            raise UserError(f"{checkpoint}: a {type(self.model).__name__} keeps no keys and values; name another model")
        settings = self.model.generation_config
        end = first(settings.eos_token_id, config.eos_token_id, self.tokenizer.eos_token_id)
        self.ends: list[int] = [end] if isinstance(end, int) else list(end or ())
        self.stops = [] if stop is None else _tokens_with(stop, self.tokenizer)

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of the prompt with each text in it, of which only the text is cut."""
        return self.prompt.read(texts, self.tokenizer)

    def start(self, ids: Sequence[list[int]]) -> tuple[Read, Tensor]:
        """The prompts' keys and values, and the logits of the first token after each. [B, V]"""
        length = max(len(each) for each in ids)
        ids_BL = torch.tensor([[0] * (length - len(each)) + each for each in ids], device=self.device)
        mask_BL = torch.tensor([[0] * (length - len(each)) + [1] * len(each) for each in ids], device=self.device)
        state = Read(self.model, self.takes, mask_BL, None)
        return state, state.step(ids_BL)

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """What was written, up to the stop."""
        texts: list[str] = self.tokenizer.batch_decode(samples, skip_special_tokens=True)
        return texts if self.stop is None else [text.partition(self.stop)[0] for text in texts]


class Prompt:
    """A text around a passage, of at most so many tokens with it."""

    def __init__(self, prompt: str, max_tokens: int) -> None:
        if prompt.count(PASSAGE) != 1:
            raise UserError(f"prompt: expected {PASSAGE} in it once, where the passage goes, found {prompt!r}")
        (self.head, self.tail), self.max_tokens = prompt.split(PASSAGE), max_tokens

    def read(self, passages: Sequence[str], tokenizer: Any) -> list[list[int]]:
        """Token ids; of a passage that is too long, the end is left out."""
        found: list[list[int]] = tokenizer([self.head + each + self.tail for each in passages])["input_ids"]
        for place, ids in enumerate(found):
            if len(ids) > self.max_tokens:
                found[place] = self._cut(passages[place], len(ids) - self.max_tokens, tokenizer)
        return found

    def _cut(self, passage: str, excess: int, tokenizer: Any) -> list[int]:
        given = tokenizer(passage, add_special_tokens=False, return_offsets_mapping=True)
        offsets: list[tuple[int, int]] = given["offset_mapping"]
        room = len(offsets) - excess
        while room > 0:
            ids: list[int] = tokenizer(self.head + passage[: offsets[room][0]] + self.tail)["input_ids"]
            if len(ids) <= self.max_tokens:
                return ids
            room -= len(ids) - self.max_tokens  # where the cut was made, words may have come apart
        alone = len(tokenizer(self.head + self.tail)["input_ids"])
        raise UserError(
            f"input_max_tokens: the prompt alone has {alone} tokens, which leaves no room for a passage in "
            f"{self.max_tokens}; set it higher or shorten the prompt"
        )


def _tokens_with(stop: str, tokenizer: Any) -> list[int]:
    """The tokens in whose text the stop is."""
    ids = sorted(tokenizer.get_vocab().values())
    texts = tokenizer.batch_decode([[each] for each in ids])
    return [number for number, text in zip(ids, texts, strict=True) if stop in text]
