"""Condenser: a pre-training architecture that makes the late layers condense the text into [CLS].

A head of two layers recovers the masked tokens from the last layer's [CLS] and an *early* layer's states of the other
tokens. What the late layers compute reaches the head only through [CLS], so they have to store it there.

Gao and Callan, Condenser: a Pre-training Architecture for Dense Retrieval; here by Wu et al., Query-as-context
Pre-training for Dense Passage Retrieval, section 2.1, equation 6. The head is dropped after pre-training.

Shape suffixes: B batch, L length, H hidden, N real tokens of all texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from models.batch import Rows
from models.layers.backbone import Backbone
from models.layers.bert_layers import Layer, initialise
from models.layers.unpadding import Packing
from models.losses import recovery_loss
from models.masked_texts import MaskedTexts
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates
from models.representation import Pooling, pool
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that the released code exposes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    head_layers: int
    head_from: int
    """M: the layer whose hidden states the head reads in addition to [CLS], counted from 1; 0 is the embeddings."""
    mask_rate: float
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens)
        if self.head_layers < 1 or self.head_from < 0:
            raise ValueError("head_layers: expected 1 or more; head_from: expected 0 or more")


@dataclass(frozen=True)
class Batch(Rows):
    """A batch of masked texts."""

    text: MaskedTexts

    def num_terms(self, loss: str) -> int:
        """Return the number of masked tokens, which both losses predict."""
        return len(self.text.labelled)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, mask and pad the texts."""
    return Batch(MaskedTexts.make(raw.texts, settings.max_tokens, settings.mask_rate, tokenizer, random))


class Pretraining(LocalObjective):
    """L = L_mlm + L_mlm^aux (equations 4 and 6)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model = initial.model
        self.head = Head(initial.model, settings.head_layers, settings.head_from, initial.pooling)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the two MLM losses: of the encoder and of the head."""
        _, late_BLH, headed_BLH = self.head(self.model, batch.text.tokens)
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, late_BLH, batch.text.labels, batch.text.labelled),
            "head": recovery_loss(self.model.vocabulary, headed_BLH, batch.text.labels, batch.text.labelled),
        }


class Head(nn.Module):
    """BERT layers over [h_0^L, h_1^M ... h_n^M]: the last layer's [CLS] and layer M's states of the other tokens."""

    def __init__(self, model: Backbone, num_layers: int, reads_from: int, pooling: Pooling) -> None:
        super().__init__()
        depth = model.config.num_hidden_layers
        if reads_from >= depth:
            raise ValueError(f"head_from: expected a layer before the last of the model's {depth}, found {reads_from}")
        self.reads_from, self.pooling = reads_from, pooling
        self.layers = nn.ModuleList(Layer(model.config) for _ in range(num_layers))
        self.layers.apply(lambda module: initialise(module, model.config.initializer_range))

    def forward(self, model: Backbone, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return the texts' vectors [B, H], the model's last hidden states [B, L, H] and the head's [B, L, H]."""
        packing = Packing(tokens.mask, positions_N=tokens.positions)
        embedded_NH = packing.packed(model.embed(tokens.ids))
        early_NH = model.run(model.layers[: self.reads_from], embedded_NH, packing)
        late_BLH = packing.padded(model.final_norm(model.run(model.layers[self.reads_from :], early_NH, packing)))
        vectors_BH = pool(late_BLH, tokens.mask, self.pooling)
        headed_NH = packing.with_first(model.final_norm(early_NH), vectors_BH)
        for layer in self.layers:
            headed_NH = layer(headed_NH, packing)
        return vectors_BH, late_BLH, packing.padded(headed_NH)
