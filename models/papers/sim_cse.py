"""SimCSE: a text, encoded twice with different dropout masks, is its own positive.

Dropout is the only augmentation: the two encodings of a text differ in nothing else. The contrastive loss makes each
encoding similar to the text's other encoding and dissimilar to those of the other texts.

Gao et al., SimCSE: Simple Contrastive Learning of Sentence Embeddings, section 3 (unsupervised); a baseline of
A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval.

Shape suffixes: B batch, L length, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.batch import Rows
from models.layers.bert_layers import initialise
from models.losses import contrastive_loss
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.texts import crop_with_specials
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The dropout rate of the two encodings, the softmax temperature and the length limit."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    temperature: float
    dropout: float
    """The dropout rate of this pre-training, in place of the backbone's; without it both encodings would be equal."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_lengths(max_tokens=self.max_tokens)
        if not 0 < self.dropout < 1:
            raise ValueError("dropout: expected a rate above 0 and below 1; without it both encodings would be equal")
        if self.temperature <= 0:
            raise ValueError("temperature: expected a number above 0")


@dataclass(frozen=True)
class Batch(Rows):
    """Unmasked texts."""

    text: Tokens


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop the texts, add special tokens and pad."""
    return Batch(crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random).tokens())


class Pretraining(nn.Module):
    """L = - mean log softmax of cos(z_i, z'_i) / tau, over all z'_j of the batch (equation 4)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings
        size = initial.model.config.hidden_size
        self.projection = nn.Linear(size, size)
        initialise(self.projection, initial.model.config.initializer_range)
        initial.model.set_dropout(settings.dropout)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return the vectors of both encodings, [B, H] each, and no local loss."""
        return (self.project(batch.text), self.project(batch.text)), {}

    def project(self, text: Tokens) -> Tensor:
        """Encode texts and apply the projection layer, which is used in training only; [B, H]."""
        hidden_BLH = self.model(text)
        return torch.tanh(self.projection(pool(hidden_BLH, text.mask, self.pooling)))

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return the contrastive loss of each first encoding against all second encodings."""
        first_BH, second_BH = (normalize(encoding_BH.float(), dim=1) for encoding_BH in vectors)
        targets_B = torch.arange(len(first_BH), device=first_BH.device)
        return {"contrast": contrastive_loss(first_BH @ second_BH.T, targets_B, temperature=self.settings.temperature)}
