"""The training objective of a query generator: to generate a passage's query, and at first pieces of the passage.

Shape suffixes: B batch, L length of a passage, T length of a query, V vocabulary, N target tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.batch import HostProperty, Rows, flat_positions
from models.objective import LocalObjective, Losses, Vectors
from models.tokens import Tokenizer, Tokens
from tasks.training.epochs import rows_of_step
from tasks.training.seeds import random_generator


@dataclass(frozen=True)
class Batch(Rows):
    """Input texts and their target sequences; a target is the start token, the text and its end."""

    texts: Tokens
    targets: Tokens

    @HostProperty
    def predicted(self) -> Tensor:
        """The flat positions [N] of target tokens after the start token, among B x (T - 1)."""
        return flat_positions(self.targets.mask[:, 1:])

    def num_terms(self, loss: str) -> int:
        """Return the number of target tokens, over which the loss is the mean in a chunk and in the complete batch."""
        return len(self.predicted)


class Seq2SeqObjective(LocalObjective):
    """The mean negative log-likelihood of the target tokens, each given the tokens before it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors, and the loss of these rows."""
        logits_BTV = self.model(
            input_ids=batch.texts.ids,
            attention_mask=additive_mask(batch.texts.mask, self.model.dtype),
            decoder_input_ids=batch.targets.ids[:, :-1],
            use_cache=False,
        ).logits
        logits_NV = logits_BTV.flatten(0, 1).index_select(0, batch.predicted)
        target_N = batch.targets.ids[:, 1:].flatten().index_select(0, batch.predicted)
        return (), {"cross_entropy": cross_entropy(logits_NV.float(), target_N)}


def additive_mask(mask_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what attention adds to its logits [B, 1, 1, L]: 0 at tokens, the least number of the type at padding.

    `transformers` makes the same of a mask [B, L], but first reads whether there is padding, in the encoder and in the
    decoder, for which the host waits for a GPU. A mask of four dimensions is used as it is.
    """
    blank = torch.zeros((), dtype=dtype, device=mask_BL.device)
    return torch.where(mask_BL, blank, torch.finfo(dtype).min)[:, None, None]


class ExampleSettings(Protocol):
    """The settings of examples; `GeneratorTraining` documents each."""

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
    """The batch of each step: either pieces of passages to copy, or queries to generate."""

    def __init__(
        self, passages: Sequence[str], pairs: Sequence[tuple[int, str]], tokenizer: Tokenizer, settings: ExampleSettings
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.passages = tokenizer.encode(passages, settings.input_max_tokens)
        self.passage_of_query = [passage for passage, _ in pairs]
        pieces = tokenizer.token_ids([query for _, query in pairs])
        self.queries = [self._target(query[: settings.query_max_tokens - 1]) for query in pieces]

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, which does not depend on other steps."""
        settings, random = self.settings, random_generator(self.settings.seed, step)
        if step < settings.copy_steps or random.random() < settings.copy_share:
            passages = random.integers(len(self.passages), size=settings.batch).tolist()
            targets = [self._target(self._piece(self.passages[passage], random)) for passage in passages]
        else:
            pairs = rows_of_step(step - settings.copy_steps, settings.batch, len(self.queries), settings.seed)
            passages = [self.passage_of_query[pair] for pair in pairs]
            targets = [self.queries[pair] for pair in pairs]
        texts = self.tokenizer.pad_batch([self.passages[passage] for passage in passages])
        return Batch(texts, self.tokenizer.pad_batch(targets))

    def _target(self, pieces: list[int]) -> list[int]:
        return [self.tokenizer.cls, *pieces, self.tokenizer.sep]

    def _piece(self, passage: list[int], random: Generator) -> list[int]:
        """Return consecutive tokens of a passage; the first begins a word."""
        settings = self.settings
        starts = np.flatnonzero(~self.tokenizer.continues[passage[1:-1]]) + 1
        start = int(random.choice(starts)) if len(starts) else 1
        size = int(random.integers(settings.copy_min_tokens, settings.copy_max_tokens + 1))
        return passage[start : min(start + size, len(passage) - 1)]
