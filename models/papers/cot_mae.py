"""CoT-MAE: a contextual masked auto-encoder.

A deep encoder reads a masked passage. A shallow decoder recovers a context of it (a pseudo-query, in query-as-context
pre-training) from the encoder's vector and little else, so the vector has to carry the information.

Wu et al., Query-as-context Pre-training for Dense Passage Retrieval, sections 2.2 and 3.1. Two decoders: `ae`
as the paper prints it (a masked language model over the context, equations 8-11), `ar` as its authors released
it (each token of the context is predicted from the vector and a window of tokens before it).

Shape suffixes: B batch, L length of the passage, C length of the context, H hidden, N real or selected tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from models.batch import HostProperty, Rows, flat_positions
from models.layers.backbone import Backbone
from models.layers.bert_layers import Layer, initialise
from models.layers.decoder import AutoRegressiveDecoder, shared
from models.layers.own_positions import OwnPositions
from models.layers.unpadding import Packing
from models.losses import masked_lm_loss, recovery_loss
from models.masking import IGNORED, mask_words
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_decoder_width, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED, omitted_at
from models.texts import crop_with_specials, interleave
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in which the rows of the papers' tables differ."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "pairs"
    counts_terms: ClassVar[bool] = False

    decoder: Literal["ar", "ae"]
    decoder_layers: int
    window: int | None
    """`ar` only: the number of tokens that a position sees in addition to the vector, its own included; 1 or more."""
    decoder_width: Annotated[int | None, omitted_at(None)] = None
    """`ar` only: the inner size of the decoder's MLPs, 4 times the hidden size in GPT-2; null for the backbone's."""
    text_mask_rate: float
    context_mask_rate: float | None
    """`ae` only; null with `ar`."""
    symmetric: bool
    """Whether contexts are encoded too and each text is decoded from its partner's vector (the original CoT-MAE)."""
    max_tokens: int
    """The length of a passage with [CLS] and [SEP]; a longer one is cropped at both ends."""
    context_max_tokens: int

    @property
    def rows_per_text(self) -> int:
        """The number of rows of a batch for each text."""
        return 2 if self.symmetric else 1

    def __post_init__(self) -> None:
        check_rates(text_mask_rate=self.text_mask_rate)
        check_lengths(max_tokens=self.max_tokens, context_max_tokens=self.context_max_tokens)
        if self.decoder_layers < 1:
            raise ValueError("decoder_layers: expected 1 or more")
        check_decoder_width(self.decoder_width)
        if self.decoder == "ar" and (self.window is None or self.window < 1 or self.context_mask_rate is not None):
            raise ValueError("decoder ar: expected a window of 1 or more, and null for context_mask_rate")
        if self.decoder == "ae" and self.decoder_width is not None:
            raise ValueError("decoder ae: its layers are BERT's; expected null for decoder_width")
        if self.decoder == "ae" and (self.window is not None or self.context_mask_rate is None):
            raise ValueError("decoder ae: expected a context_mask_rate, and null for window")
        if self.context_mask_rate is not None:
            check_rates(context_mask_rate=self.context_mask_rate)
        if self.symmetric and self.max_tokens != self.context_max_tokens:
            raise ValueError("symmetric: text and context are exchanged, so expected equal max_tokens for both")


@dataclass(frozen=True)
class Batch(Rows):
    """Masked passages and contexts with the ids to recover; labels are IGNORED at all other positions."""

    text: Tokens
    text_labels: Tensor
    context: Tokens
    context_labels: Tensor

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of the masked tokens of passages."""
        return flat_positions(self.text_labels != IGNORED)

    @HostProperty
    def predicted(self) -> Tensor:
        """The flat positions [N] of the tokens of contexts that the decoder predicts, which are never [CLS]."""
        columns_C = torch.arange(self.context_labels.shape[1], device=self.context_labels.device)
        return flat_positions((self.context_labels != IGNORED) & (columns_C > 0))

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token a loss predicts."""
        return len({"mlm": self.labelled, "context": self.predicted}[loss])


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop the texts, add special tokens, mask and pad; symmetric rows 2k and 2k + 1 are a pair, exchanged."""
    texts = crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    contexts = crop_with_specials(raw.contexts, settings.context_max_tokens, tokenizer, random)
    if settings.symmetric:
        texts, contexts = interleave(texts, contexts, tokenizer.pad), interleave(contexts, texts, tokenizer.pad)
        random = random.times(2)
    inputs, labels = mask_words(texts, tokenizer, settings.text_mask_rate, random)
    context_inputs, context_labels = contexts.ids, np.where(contexts.real, contexts.ids, IGNORED)
    if settings.context_mask_rate is not None:
        context_inputs, context_labels = mask_words(contexts, tokenizer, settings.context_mask_rate, random)
    return Batch(
        texts.tokens(inputs),
        torch.from_numpy(labels),
        contexts.tokens(context_inputs),
        torch.from_numpy(context_labels),
    )


class Pretraining(LocalObjective):
    """L = L_mlm + L_ctx (equation 11)."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.context_max_tokens)
        self.model, self.pooling = initial.model, initial.pooling
        self.decoder: MaskedDecoder | AutoRegressiveDecoder
        if settings.window is None:
            self.decoder = MaskedDecoder(initial.model, settings.decoder_layers, settings.context_max_tokens)
        else:
            self.decoder = AutoRegressiveDecoder(
                initial.model,
                num_blocks=settings.decoder_layers,
                window=settings.window,
                width=settings.decoder_width,
                max_tokens=settings.context_max_tokens,
            )

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors, and the losses of the masked passage and of the decoded context."""
        hidden_BLH = self.model(batch.text)
        vectors_BH = pool(hidden_BLH, batch.text.mask, self.pooling)
        context_logits, labels = self.decoder(vectors_BH, batch.context, batch.context_labels, batch.predicted)
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.text_labels, batch.labelled),
            "context": masked_lm_loss(context_logits, labels),
        }


class MaskedDecoder(nn.Module):
    """BERT layers over the masked context, with the passage's vector at the first position (equations 8-10)."""

    def __init__(self, model: Backbone, num_layers: int, max_tokens: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(model.config) for _ in range(num_layers))
        self.layers.apply(lambda module: initialise(module, model.config.initializer_range))
        self.vocabulary, self.embeddings = shared(model)
        self.own_positions = OwnPositions(model, max_tokens)

    def forward(
        self, vectors_BH: Tensor, context: Tokens, labels_BC: Tensor, predicted_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logits [N, V] and the labels [N] of the tokens at ascending flat positions."""
        packing = Packing(context.mask, positions_N=context.positions)
        hidden_NH = packing.with_first(packing.packed(self.own_positions(self.embeddings(context.ids))), vectors_BH)
        for layer in self.layers:
            hidden_NH = layer(hidden_NH, packing)
        logits_NV = self.vocabulary(packing.at(hidden_NH, predicted_N))
        return logits_NV, labels_BC.flatten().index_select(0, predicted_N)
