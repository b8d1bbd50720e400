"""DupMAE: RetroMAE with a second decoder that predicts the text's bag of words from its ordinary tokens.

RetroMAE trains only the vector of [CLS]. Here a linear layer also maps the other tokens' hidden states to the
vocabulary, and their maximum over positions must predict the bag of words of the complete text.

Xiao and Liu, RetroMAE v2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented Language Models, section
3.2, equations 6-9. Settings choose between the printed and the released version: which tokens are pooled, by which
layer, and the weights of the words and of the bag-of-words loss.

Shape suffixes: B batch, L length, Q = L - 1 positions after [CLS], H hidden, V vocabulary, N selected positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from models.batch import HostProperty, flat_positions
from models.layers.max_logits import max_of_logits
from models.layers.unpadding import among
from models.losses import masked_lm_loss, recovery_loss
from models.masking import IGNORED
from models.objective import LocalObjective, Losses, Vectors
from models.papers import retro_mae
from models.papers.retro_mae import EnhancedDecoder
from models.pretraining import Initialisation, RawBatch
from models.representation import pool
from models.row_random import RowRandom
from models.tokens import Tokenizer

BowTarget = Literal["mean_over_length", "sum_over_set", "mean_over_set"]


@dataclass(frozen=True, kw_only=True)
class Settings(retro_mae.Settings):
    """RetroMAE's settings, and those that the paper's table 3 and the released code vary."""

    cls_decoding: bool
    """Whether RetroMAE's decoder is trained."""
    ot_decoding: bool
    """Whether the bag of words is decoded from ordinary tokens."""
    bow_weight: float | None
    """Beta, the weight of the bag of words: 1 printed, 0.1 released. `ot_decoding` only."""
    bow_target: BowTarget
    """The weight of each distinct word: 1 / text length (released), 1 (printed) or 1 / number of distinct words."""
    exclude_masked: bool
    """Whether masked tokens are excluded from the maximum, as printed."""
    ot_head: Literal["tied", "own"]
    """The MLM head (released), or a separate matrix (printed)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.cls_decoding or self.ot_decoding):
            raise ValueError("cls_decoding, ot_decoding: expected at least one of them to be true")
        if self.ot_decoding and self.bow_weight is None:
            raise ValueError("bow_weight: expected a number above 0 with ot_decoding, found null")
        if not self.ot_decoding and self.bow_weight is not None:
            raise ValueError("bow_weight: expected null without ot_decoding")
        if self.bow_weight is not None and self.bow_weight <= 0:
            raise ValueError("bow_weight: expected a number above 0")


@dataclass(frozen=True)
class Batch(retro_mae.Batch):
    """RetroMAE's batch; the bag of words is that of the unmasked texts."""

    @HostProperty
    def after_cls(self) -> Tensor:
        """The flat positions [N] of all tokens but [CLS]."""
        return self.text.after_first()

    @HostProperty
    def unmasked(self) -> Tensor:
        """The flat positions [N] of all tokens but [CLS] and masked tokens."""
        after_cls_BL = self.text.mask.clone()
        after_cls_BL[:, 0] = False
        return flat_positions(after_cls_BL & (self.labels == IGNORED))

    def num_terms(self, loss: str) -> int:
        """Return the number of texts for the bag-of-words loss, and of predicted positions for the others."""
        return len(self) if loss == "bow" else super().num_terms(loss)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, mask and pad the texts as RetroMAE does."""
    return Batch(**vars(retro_mae.make_batch(raw, tokenizer, settings, random)))


class Pretraining(LocalObjective):
    """L = L_enc + L_dec + beta L_bow (equation 9, where beta is 1)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings
        if settings.cls_decoding:
            self.decoder = EnhancedDecoder(initial.model, settings)
        if settings.ot_decoding and settings.ot_head == "own":
            config = initial.model.config
            self.projection = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the losses of encoder, decoder and bag of words."""
        hidden_BLH = self.model(batch.text)
        losses = self._encoder_and_bow(hidden_BLH, batch)
        if self.settings.cls_decoding:
            losses["decoder"] = self._decoder(pool(hidden_BLH, batch.text.mask, self.pooling), batch)
        return (), losses

    def _decoder(self, vectors_BH: Tensor, batch: Batch) -> Tensor:
        """Return L_dec (equations 2-5): H1, the vector h with positions, attends to H2 and predicts every token."""
        decoded_NH = self.decoder(*self.decoder.streams(vectors_BH, self.model, batch.original), batch)
        return masked_lm_loss(self.model.vocabulary(decoded_NH), batch.ordinary_ids)

    def _encoder_and_bow(self, hidden_BLH: Tensor, batch: Batch) -> Losses:
        """Return L_enc and beta L_bow. With a tied head both use the same logits, that of [SEP] included."""
        if self.settings.bow_weight is None:
            return {"mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.labels, batch.labelled)}
        pool_BL = batch.text.mask.clone()
        pool_BL[:, 0] = False
        pool_N = after_cls_N = batch.after_cls
        if self.settings.exclude_masked:
            pool_BL, pool_N = pool_BL & (batch.labels == IGNORED), batch.unmasked
        hidden_MH = hidden_BLH.flatten(0, 1)
        if self.settings.ot_head == "own":
            mlm = recovery_loss(self.model.vocabulary, hidden_BLH, batch.labels, batch.labelled)
            logits_NV = self.projection(hidden_MH.index_select(0, pool_N))
        else:
            logits_NV = self.model.vocabulary(hidden_MH.index_select(0, after_cls_N))
            labelled_logits = logits_NV.index_select(0, among(after_cls_N, batch.labelled))
            mlm = masked_lm_loss(labelled_logits, batch.labels.flatten().index_select(0, batch.labelled))
            if self.settings.exclude_masked:
                logits_NV = logits_NV.index_select(0, among(after_cls_N, pool_N))
        max_logits_BV = max_of_logits(logits_NV, pool_BL)
        weights_BV = word_weights(batch.original, batch.words >= 0, max_logits_BV.shape[1], self.settings.bow_target)
        return {"mlm": mlm, "bow": self.settings.bow_weight * bow_loss(max_logits_BV, weights_BV)}


def word_weights(ids_BL: Tensor, own_BL: Tensor, vocab_size: int, target: BowTarget) -> Tensor:
    """Return the weight of each token of the vocabulary in each text [B, V]; 0 for tokens that are not in it.

    `own_BL` is False at special tokens and padding.
    """
    counts_BV = own_BL.new_zeros(len(ids_BL), vocab_size, dtype=torch.float).scatter_add(1, ids_BL, own_BL.float())
    present_BV = (counts_BV > 0).float()
    if target == "sum_over_set":
        return present_BV
    lengths_BV = counts_BV if target == "mean_over_length" else present_BV
    return present_BV / lengths_BV.sum(1, keepdim=True).clamp(min=1)


def bow_loss(max_logits_BV: Tensor, weights_BV: Tensor) -> Tensor:
    """Return the mean over texts of the weighted cross-entropy of their words under a softmax (equation 8)."""
    return -(weights_BV * log_softmax(max_logits_BV.float(), dim=1)).sum(1).mean()
