"""SimCSE: a text, read twice under different dropout, is its own positive.

Dropout is the least of all augmentations: two readings of a text differ in nothing but which numbers were dropped.
To find its second reading among those of the other texts, a text's vector must say what sets it apart.

Gao et al., SimCSE: Simple Contrastive Learning of Sentence Embeddings, section 3 (unsupervised); a baseline of
A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval.

Shape suffixes: B batch, L length, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.batch import Rows
from models.layers.bert import BertForMaskedLM, SelfAttention, initialise
from models.losses import contrastive_loss
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, crop_with_specials
from models.representation import pool
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How alike the readings are, and how sharply they are distinguished."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    temperature: float
    dropout: float
    """In this pre-training, whatever the backbone has: without it the two readings would be one."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_lengths(max_tokens=self.max_tokens)
        if not 0 < self.dropout < 1:
            raise ValueError("dropout: it makes the two readings; expected a share above 0 and below 1")
        if self.temperature <= 0:
            raise ValueError("temperature: expected a number above 0")


@dataclass(frozen=True)
class Batch(Rows):
    """Texts as they are."""

    text: Tokens


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Crop, add special tokens and pad."""
    return Batch(
        pad([crop_with_specials(ids, settings.max_tokens, tokenizer, random) for ids in raw.texts], tokenizer.pad)
    )


class Pretraining(nn.Module):
    """L = - mean log of the softmax of cos(z_i, z'_i) / tau over all z'_j (equation 4)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings
        size = initial.model.config.hidden_size
        self.projection = nn.Linear(size, size)
        initialise(self.projection, initial.model.config.initializer_range)
        drop(initial.model, settings.dropout)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Both readings' vectors [B, H] each, after a layer that is there in training alone; no local loss."""
        return (self.read(batch.text), self.read(batch.text)), {}

    def read(self, text: Tokens) -> Tensor:
        """One reading [B, H]."""
        hidden_BLH = self.model.bert(text.ids, text.mask)
        return torch.tanh(self.projection(pool(hidden_BLH, text.mask, self.pooling)))

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Each first reading against all second ones."""
        first_BH, second_BH = (normalize(each.float(), dim=1) for each in vectors)
        own_B = torch.arange(len(first_BH), device=first_BH.device)
        return {"contrast": contrastive_loss(first_BH @ second_BH.T, own_B, temperature=self.settings.temperature)}


def drop(model: BertForMaskedLM, rate: float) -> None:
    """Have the network drop such a share while it trains; the configuration that is saved keeps its own."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        elif isinstance(module, SelfAttention):
            module.dropout = rate
