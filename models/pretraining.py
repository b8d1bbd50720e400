"""The interface of a paper's pre-training: its texts, its initial model, and checks of its settings.

A module of `models.papers` has `Settings` (a frozen dataclass; `reads` and `counts_terms` name the inputs that it
needs), `make_batch(raw, tokenizer, settings, random)`, and `Pretraining(initial, settings)`, a module that is an
`Objective`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from models.layers.bert import BertForMaskedLM
from models.masking import Ids
from models.representation import Pooling
from models.retrievers.bi_encoder import DenseEncoder
from models.tokens import Tokenizer

Reads = Literal["texts", "pairs", "sentences"]
"""Texts only; texts with a context of each; texts with one of their own sentences."""


@dataclass(frozen=True)
class TermCounts:
    """Counts of WordPiece tokens over all texts of the pre-training; arrays are indexed by token id."""

    num_texts: int
    texts: Ids
    """The number of texts with a token."""
    occurrences: Ids
    """The number of occurrences of a token in all texts."""


@dataclass(frozen=True)
class RawBatch:
    """The texts of a step and, where the paper uses them, the context sampled for each; token ids without specials."""

    texts: Sequence[Sequence[int]]
    contexts: Sequence[Sequence[int]] = ()
    terms: TermCounts | None = None
    """Given where the paper uses term counts."""


@dataclass(frozen=True)
class Initialisation:
    """The initial model of a pre-training, and the term counts of its texts."""

    encoder: DenseEncoder
    terms: TermCounts | None = None

    @property
    def model(self) -> BertForMaskedLM:
        """The passage encoder, which also encodes queries unless they have an encoder of their own."""
        return self.encoder.passage

    @property
    def pooling(self) -> Pooling:
        """How the last layer's hidden states become a text's vector."""
        return self.encoder.pooling

    def check_positions(self, *max_tokens: int) -> None:
        """Raise ValueError for texts that are longer than the model has positions."""
        if max(max_tokens) > self.encoder.num_positions:
            raise ValueError(f"max_tokens: expected at most {self.encoder.num_positions}, found {max(max_tokens)}")


def crop_with_specials(ids: Sequence[int], max_tokens: int, tokenizer: Tokenizer, random: Generator) -> Ids:
    """[CLS] ids [SEP], of at most `max_tokens`: a random crop of a longer text."""
    excess = max(0, len(ids) - (max_tokens - 2))
    first = int(random.integers(excess + 1))
    return np.array([tokenizer.cls, *ids[first : len(ids) - (excess - first)], tokenizer.sep], dtype=np.int64)


def check_rates(**rates: float) -> None:
    """Raise ValueError for shares that are not above 0 and at most 1."""
    wrong = [name for name, rate in rates.items() if not 0 < rate <= 1]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected a share above 0 and at most 1")


def check_lengths(**lengths: int) -> None:
    """Raise ValueError for lengths without room for a token between [CLS] and [SEP]."""
    wrong = [name for name, length in lengths.items() if length < 3]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected 3 or more, [CLS] and [SEP] being two")
