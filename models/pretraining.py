"""What every paper's pre-training starts from and reads.

A paper's file has `Settings` (a frozen dataclass that says by `reads` and `counts_terms` what it needs),
`make_batch(drawn, tokenizer, settings, random)`, and `Pretraining(start, settings)`, a module that is an
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
"""Texts alone; texts and a context of each; texts and one of their own sentences."""


@dataclass(frozen=True)
class TermCounts:
    """How often word pieces occur in all texts that are pre-trained on; arrays are by id."""

    num_texts: int
    texts: Ids
    """In how many texts a piece occurs."""
    occurrences: Ids
    """How often it occurs in all."""


@dataclass(frozen=True)
class RawBatch:
    """What a step reads: texts and, where the paper wants them, the context drawn for each; ids without specials."""

    texts: Sequence[Sequence[int]]
    contexts: Sequence[Sequence[int]] = ()
    terms: TermCounts | None = None
    """Where the paper counts terms."""


@dataclass(frozen=True)
class Initialisation:
    """What a pre-training begins with."""

    encoder: DenseEncoder
    terms: TermCounts | None = None

    @property
    def model(self) -> BertForMaskedLM:
        """The network that reads passages; queries too, where there are no two towers."""
        return self.encoder.passage

    @property
    def pooling(self) -> Pooling:
        """What of the last layer is a text's vector."""
        return self.encoder.pooling

    def check_positions(self, *max_tokens: int) -> None:
        """Refuse texts that are longer than the model has positions."""
        if max(max_tokens) > self.encoder.num_positions:
            raise ValueError(f"max_tokens: expected at most {self.encoder.num_positions}, found {max(max_tokens)}")


def crop_with_specials(ids: Sequence[int], max_tokens: int, tokenizer: Tokenizer, random: Generator) -> Ids:
    """[CLS] ids [SEP], of at most `max_tokens`: what is too much leaves at both ends, split at random."""
    excess = max(0, len(ids) - (max_tokens - 2))
    left = int(random.integers(excess + 1))
    return np.array([tokenizer.cls, *ids[left : len(ids) - (excess - left)], tokenizer.sep], dtype=np.int64)


def check_rates(**rates: float) -> None:
    """Refuse shares that are not above 0 and at most 1."""
    wrong = [name for name, rate in rates.items() if not 0 < rate <= 1]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected a share above 0 and at most 1")


def check_lengths(**lengths: int) -> None:
    """Refuse lengths that leave no room beside [CLS] and [SEP]."""
    wrong = [name for name, length in lengths.items() if length < 3]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected 3 or more, [CLS] and [SEP] being two")
