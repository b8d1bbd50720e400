"""What a query generator is trained on: to write a query for its passage, and at first pieces of the passage itself.

Shape suffixes: B batch, L length of a passage, T length of a query, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import Generator
from torch import nn
from torch.nn.functional import cross_entropy

from models.objective import Losses, Vectors
from models.tokens import Tokenizer, Tokens
from tasks.training.epochs import visited


@dataclass(frozen=True)
class Batch:
    """Texts, and for each the start token followed by what is to be written and its end."""

    texts: Tokens
    written: Tokens

    def __len__(self) -> int:
        return len(self.texts.ids)

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the rows, as a batch."""
        texts, written = (Tokens(each.ids[start:stop], each.mask[start:stop]) for each in (self.texts, self.written))
        return Batch(texts, written)

    def num_terms(self, loss: str) -> int:
        """Tokens to be written: what the loss is the mean over, in a chunk as in the whole batch."""
        return int(self.written.mask[:, 1:].sum())

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.texts.to(device), self.written.to(device))


class Writer(nn.Module):
    """The objective: the mean negative log-likelihood of the written tokens, each after those before it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """No vectors; the loss of these rows."""
        logits_BTV = self.model(
            input_ids=batch.texts.ids,
            attention_mask=batch.texts.mask.long(),
            decoder_input_ids=batch.written.ids[:, :-1],
        ).logits
        asked_BT = batch.written.mask[:, 1:]
        return (), {"cross_entropy": cross_entropy(logits_BTV[asked_BT].float(), batch.written.ids[:, 1:][asked_BT])}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Nothing is compared across a batch."""
        return {}

    def state_dict(self, *args: Any, **keywords: Any) -> dict[str, Any]:  # type: ignore[override]
        """Weights that are tied once: safetensors writes none twice."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state_dict: Any, *args: Any, **keywords: Any) -> Any:
        """What `state_dict` gave."""
        return super().load_state_dict(state_dict, strict=False)


class Copying(Protocol):
    """When and what to copy; the meaning stands at `GeneratorTraining`."""

    @property
    def copy_steps(self) -> int: ...
    @property
    def copy_share(self) -> float: ...
    @property
    def copy_min_tokens(self) -> int: ...
    @property
    def copy_max_tokens(self) -> int: ...
    @property
    def input_max_tokens(self) -> int: ...
    @property
    def query_max_tokens(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Examples:
    """The batch of every step: of copying, or of writing queries."""

    def __init__(
        self, passages: Sequence[str], pairs: Sequence[tuple[int, str]], tokenizer: Tokenizer, settings: Copying
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.passages = tokenizer.encode(passages, settings.input_max_tokens)
        self.passage_of = [place for place, _ in pairs]
        pieces = tokenizer.token_ids([query for _, query in pairs])
        self.queries = [self._written(each[: settings.query_max_tokens - 1]) for each in pieces]

    def batch(self, step: int) -> Batch:
        """The same batch for a step, whatever went before."""
        settings, random = self.settings, np.random.default_rng((self.settings.seed, step))
        if step < settings.copy_steps or random.random() < settings.copy_share:
            places = random.integers(len(self.passages), size=settings.batch).tolist()
            written = [self._written(self._piece(self.passages[place], random)) for place in places]
        else:
            pairs = visited(step - settings.copy_steps, settings.batch, len(self.queries), settings.seed)
            places = [self.passage_of[pair] for pair in pairs]
            written = [self.queries[pair] for pair in pairs]
        texts = self.tokenizer.pad_batch([self.passages[place] for place in places])
        return Batch(texts, self.tokenizer.pad_batch(written))

    def _written(self, pieces: list[int]) -> list[int]:
        return [self.tokenizer.cls, *pieces, self.tokenizer.sep]

    def _piece(self, passage: list[int], random: Generator) -> list[int]:
        """Some tokens in a row of a passage; the first begins a word."""
        settings = self.settings
        starts = np.flatnonzero(~self.tokenizer.continues[passage[1:-1]]) + 1
        start = int(random.choice(starts)) if len(starts) else 1
        size = int(random.integers(settings.copy_min_tokens, settings.copy_max_tokens + 1))
        return passage[start : min(start + size, len(passage) - 1)]
