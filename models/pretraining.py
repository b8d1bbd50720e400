"""The interface of a paper's pre-training: its texts, its initial model, and checks of its settings.

A module of `models.papers` has `Settings` (a frozen dataclass; `reads` and `counts_terms` name the inputs that it
needs), `make_batch(raw, tokenizer, settings, random)`, and `Pretraining(initial, settings)`, a module that is an
`Objective`. `make_batch` builds any consecutive rows of a step, whose random numbers `random` (a `RowRandom`) samples.
`Settings` also has `max_tokens`, and may have `rows_per_text` (1 if not) and `trains_heads` (true if not). With chunks,
`compare` gets vectors and a batch without fields (`tasks.training.step_batch.StepBatch`), so it reads the vectors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.layers.backbone import Backbone
from models.representation import Pooling
from models.retrievers.bi_encoder import DenseEncoder
from models.texts import Ids, Row

Reads = Literal["texts", "pairs", "sentences"]
"""Texts only; texts, each with a context; texts, each with one of its own sentences."""


@dataclass(frozen=True)
class TermCounts:
    """Counts of tokens over all pre-training texts; arrays are indexed by token id."""

    num_texts: int
    document_frequency: Ids
    """The number of texts that contain each token."""
    collection_frequency: Ids
    """The number of occurrences of each token in all texts."""


@dataclass(frozen=True)
class RawBatch:
    """The texts of a step and, where the paper uses them, one sampled context each; ids without special tokens."""

    texts: Sequence[Row]
    contexts: Sequence[Row] = ()
    terms: TermCounts | None = None
    """The term counts of all texts, if the paper uses them."""


@dataclass(frozen=True)
class Initialisation:
    """The initial model of a pre-training, and the term counts of the texts."""

    encoder: DenseEncoder
    terms: TermCounts | None = None

    @property
    def model(self) -> Backbone:
        """Return the passage encoder, which also encodes queries unless there is a separate query encoder."""
        return self.encoder.passage

    @property
    def pooling(self) -> Pooling:
        """Return how the last layer's hidden states are pooled into a text's vector."""
        return self.encoder.pooling

    def check_positions(self, *max_tokens: int) -> None:
        """Raise ValueError if a text may have more tokens than the model has positions."""
        if max(max_tokens) > self.encoder.num_positions:
            raise ValueError(f"max_tokens: expected at most {self.encoder.num_positions}, found {max(max_tokens)}")


def check_rates(**rates: float) -> None:
    """Raise ValueError unless all rates are above 0 and at most 1."""
    wrong = [name for name, rate in rates.items() if not 0 < rate <= 1]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected a share above 0 and at most 1")


def check_decoder_width(width: int | None) -> None:
    """Raise ValueError unless the inner size of a decoder's MLPs is 1 or more, or None."""
    if width is not None and width < 1:
        raise ValueError("decoder_width: expected 1 or more, or null for the backbone's intermediate size")


def check_lengths(**lengths: int) -> None:
    """Raise ValueError unless all lengths leave room for a token between [CLS] and [SEP]."""
    wrong = [name for name, length in lengths.items() if length < 3]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)}: expected 3 or more, [CLS] and [SEP] being two")
