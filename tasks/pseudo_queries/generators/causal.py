"""Hugging Face causal language models, which continue a prompt that contains the passage.

Shape suffixes: B texts, L length, R rows of a batch, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from storage.errors import UserError
from tasks.pseudo_queries.generators.load_model import ModelSource, check_length, first, open_model, open_tokenizer

PASSAGE = "{passage}"


@dataclass
class CausalState:
    """The rows of a batch: prompts and the tokens decoded after them."""

    model: Any
    arguments: frozenset[str]
    """The arguments that the model accepts."""
    mask: Tensor
    """[rows, length]"""
    cache: Any
    """Their keys and values."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append these tokens and return the logits of the next token. [R, V]"""
        if self.cache is not None:  # the mask has the prompts from the start
            self.mask = torch.cat([self.mask, self.mask.new_ones(tokens.shape)], dim=1)
        positions = (self.mask.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        optional = {"position_ids": positions, "logits_to_keep": 1}  # some models do not accept them
        output = self.model(
            input_ids=tokens, attention_mask=self.mask, past_key_values=self.cache, use_cache=True,
            **{name: value for name, value in optional.items() if name in self.arguments},
        )  # fmt: skip
        self.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits

    def repeat(self, times: int) -> None:
        """Replace each row by `times` neighbouring copies."""
        self.mask = self.mask.repeat_interleave(times, dim=0)
        self.cache.batch_repeat_interleave(times)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.mask = self.mask[rows]
        self.cache.batch_select_indices(rows)


class Causal:
    """A causal language model on its device; a query ends at an end token or at the first token that contains `stop`.

    The prompt is run once for all samples of a passage. Prompts are padded on the left, so that all continue at the
    same column, and the positions of each prompt begin at 0.
    """

    def __init__(
        self, source: ModelSource, *, prompt: str, stop: str | None, max_tokens: int, max_new_tokens: int
    ) -> None:
        checkpoint, config = source.checkpoint, source.config
        self.device, self.prompt, self.stop = source.device, Prompt(prompt, max_tokens), stop
        self.max_tokens = max_tokens
        check_length(checkpoint, config, max_tokens + max_new_tokens, "input_max_tokens + max_new_tokens")
        self.tokenizer = open_tokenizer(checkpoint)
        if not self.tokenizer.is_fast:
            raise UserError(
                f"{checkpoint}: expected a tokenizer.json, which truncating the passage of a prompt needs; add it"
            )
        self.model = open_model(source)
        self.arguments = frozenset(inspect.signature(self.model.forward).parameters)
        if "past_key_values" not in self.arguments:
            raise UserError(
                f"{checkpoint}: a {type(self.model).__name__} does not cache keys and values; use another model"
            )
        settings = self.model.generation_config
        end = first(settings.eos_token_id, config.eos_token_id, self.tokenizer.eos_token_id)
        self.ends: list[int] = [end] if isinstance(end, int) else list(end or ())
        self.stops = [] if stop is None else _tokens_with(stop, self.tokenizer)

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of the prompt with each text; only the text is truncated."""
        return self.prompt.read(texts, self.tokenizer)

    def start(self, ids: Sequence[list[int]]) -> tuple[CausalState, Tensor]:
        """Run the prompts, and return the logits of the first token after each. [B, V]"""
        length = max(map(len, ids))
        ids_BL = torch.tensor([[0] * (length - len(row)) + row for row in ids], device=self.device)
        mask_BL = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids], device=self.device)
        state = CausalState(self.model, self.arguments, mask_BL, None)
        return state, state.step(ids_BL)

    def text(self, samples: Sequence[list[int]]) -> list[str]:
        """Return the texts of generated token ids, up to the stop string."""
        texts: list[str] = self.tokenizer.batch_decode(samples, skip_special_tokens=True)
        return texts if self.stop is None else [text.partition(self.stop)[0] for text in texts]


class Prompt:
    """A text around a passage; both together have at most `max_tokens` tokens."""

    def __init__(self, prompt: str, max_tokens: int) -> None:
        if prompt.count(PASSAGE) != 1:
            raise UserError(f"prompt: expected {PASSAGE} exactly once, where the passage is inserted, found {prompt!r}")
        (self.head, self.tail), self.max_tokens = prompt.split(PASSAGE), max_tokens

    def read(self, passages: Sequence[str], tokenizer: Any) -> list[list[int]]:
        """Return the token ids; a passage that is too long loses its end."""
        prompts: list[list[int]] = tokenizer([self.head + passage + self.tail for passage in passages])["input_ids"]
        for index, ids in enumerate(prompts):
            if len(ids) > self.max_tokens:
                prompts[index] = self._truncated(passages[index], len(ids) - self.max_tokens, tokenizer)
        return prompts

    def _truncated(self, passage: str, excess: int, tokenizer: Any) -> list[int]:
        encoding = tokenizer(passage, add_special_tokens=False, return_offsets_mapping=True)
        offsets: list[tuple[int, int]] = encoding["offset_mapping"]
        room = len(offsets) - excess
        while room > 0:
            ids: list[int] = tokenizer(self.head + passage[: offsets[room][0]] + self.tail)["input_ids"]
            if len(ids) <= self.max_tokens:
                return ids
            room -= len(ids) - self.max_tokens  # the cut may have split a word into more tokens
        prompt_tokens = len(tokenizer(self.head + self.tail)["input_ids"])
        raise UserError(
            f"input_max_tokens: the prompt without a passage has {prompt_tokens} tokens, which leaves no room "
            f"for a passage in {self.max_tokens}; set it higher or shorten the prompt"
        )


def _tokens_with(stop: str, tokenizer: Any) -> list[int]:
    """Return the tokens whose text contains the stop string."""
    ids = sorted(tokenizer.get_vocab().values())
    texts = tokenizer.batch_decode([[number] for number in ids])
    return [number for number, text in zip(ids, texts, strict=True) if stop in text]
