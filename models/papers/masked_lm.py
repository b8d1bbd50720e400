"""Masked language modelling: BERT's objective without a decoder, on the texts of the collection.

It is the control for every other objective: a gain over it does not come from more steps on the same texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from models.losses import recovery_loss
from models.masked_texts import MaskedTexts
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The mask rate, the unit of masking and the length limit."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    mask_rate: float
    whole_words: bool
    """Whether all WordPiece tokens of a word are masked together; BERT's paper masks each token on its own."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens)


class Batch(MaskedTexts):
    """Masked texts and the ids to recover; labels are IGNORED at all other positions."""

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token the loss predicts."""
        return len(self.labelled)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop the texts, add special tokens, mask and pad."""
    return Batch.make(
        raw.texts, settings.max_tokens, settings.mask_rate, tokenizer, random, whole_words=settings.whole_words
    )


class Pretraining(LocalObjective):
    """L = L_mlm."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model = initial.model

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the MLM loss."""
        hidden_BLH = self.model(batch.tokens)
        return (), {"mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.labels, batch.labelled)}
