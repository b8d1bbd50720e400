"""Masked language modelling: BERT's objective without a decoder, on the texts of the collection.

It is the control for every other objective: a gain over it does not come from more steps on the same texts.

Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.batch import HostProperty, Rows, flat_positions
from models.losses import recovery_loss
from models.masking import IGNORED, mask_tokens, mask_words
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.texts import crop_with_specials
from models.tokens import Tokenizer, Tokens


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


@dataclass(frozen=True)
class Batch(Rows):
    """Masked texts and the ids to recover; labels are IGNORED at all other positions."""

    text: Tokens
    text_labels: Tensor

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.text_labels != IGNORED)

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token the loss predicts."""
        return len({"mlm": self.labelled}[loss])


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop the texts, add special tokens, mask and pad."""
    texts = crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    mask = mask_words if settings.whole_words else mask_tokens
    inputs, labels = mask(texts, tokenizer, settings.mask_rate, random)
    return Batch(texts.tokens(inputs), torch.from_numpy(labels))


class Pretraining(nn.Module):
    """L = L_mlm."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model = initial.model

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the MLM loss."""
        hidden_BLH = self.model(batch.text)
        return (), {"mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.text_labels, batch.labelled)}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return no losses: the objective has no contrast."""
        return {}
