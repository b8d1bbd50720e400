"""RetroMAE: a masked auto-encoder whose decoder is too weak to do without the text's vector.

A deep encoder reads a lightly masked text, and one decoder layer must recover every token of it. The decoder's queries
contain only the vector and a position; each position attends to its own random half of the text and never to itself.
Every token thus gives a training signal, and the vector has to carry what that half does not show.

Xiao et al., RetroMAE; here by Xiao and Liu, DupMAE, section 3.1, equations 1-5. The query stream is `sum`, as rebuilt
from equation 2 and in RetroMAE's released code, or `embedded`, as in DupMAE's released code.

Shape suffixes: B batch, L length, Q = L - 1 positions after [CLS], R masks per text, H hidden, N predicted positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from models.batch import HostProperty, Rows, flat_positions
from models.layers.backbone import Backbone
from models.layers.bert_layers import Layer, initialise
from models.layers.own_positions import OwnPositions
from models.layers.unpadding import Packing
from models.losses import masked_lm_loss, recovery_loss
from models.masking import IGNORED, mask_budgets, mask_words, sample_masks, word_limits
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED, omitted_at
from models.texts import crop_with_specials, truncate_with_specials, word_indices
from models.tokens import Tokenizer, Tokens

MAX_MASKS = 256
"""The number of masks sampled per text, as in the released code; each position picks one of them."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in which the rows of the papers' tables differ."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = False

    text_mask_rate: float
    decoder_mask_rate: float
    """The share of the text that is hidden from each position of the decoder."""
    query_stream: Literal["sum", "embedded"]
    """How vector and position are combined: by their sum, or by the embedding layer (LayerNorm and dropout)."""
    max_tokens: int
    """The length of a text with [CLS] and [SEP]."""
    crop: Annotated[Literal["random", "end"], omitted_at("random")] = "random"
    """The tokens that a longer text loses: some at both ends, by chance, or those at its end, as released."""

    def __post_init__(self) -> None:
        check_rates(text_mask_rate=self.text_mask_rate, decoder_mask_rate=self.decoder_mask_rate)
        check_lengths(max_tokens=self.max_tokens)


@dataclass(frozen=True)
class Batch(Rows):
    """Masked texts with the ids to recover, and words and budgets for the decoder's masks; all of the same crops."""

    text: Tokens
    labels: Tensor
    original: Tensor
    """[B, L], the ids before masking."""
    words: Tensor
    """[B, L], the index of each token's word; -1 for [CLS], [SEP] and padding."""
    budgets: Tensor
    """[B], the number of tokens hidden from each position of the decoder."""

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.labels != IGNORED)

    @HostProperty
    def ordinary(self) -> Tensor:
        """The flat positions [N] of all tokens but special ones."""
        return flat_positions(self.words >= 0)

    @HostProperty
    def word_limits(self) -> tuple[int, int]:
        """The largest number of words in a text and of tokens in a word."""
        return word_limits(self.words)

    @property
    def ordinary_ids(self) -> Tensor:
        """The ids [N] of all tokens but special ones before masking."""
        return self.original.flatten().index_select(0, self.ordinary)

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token a loss predicts; the decoder predicts the complete text."""
        return len({"mlm": self.labelled, "decoder": self.ordinary}[loss])


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, add special tokens, mask and pad. Budgets are shares of all tokens, including special tokens."""
    texts = (
        truncate_with_specials(raw.texts, settings.max_tokens, tokenizer) if settings.crop == "end"
        else crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    )  # fmt: skip
    inputs, labels = mask_words(texts, tokenizer, settings.text_mask_rate, random, specials_count=True)
    words, budgets = word_indices(texts, tokenizer), mask_budgets(texts.lengths, settings.decoder_mask_rate)
    others = (labels, texts.ids, words, budgets)
    return Batch(texts.tokens(inputs), *map(torch.from_numpy, others))


class Pretraining(LocalObjective):
    """L = L_enc + L_dec."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        self.model, self.pooling = initial.model, initial.pooling
        self.decoder = EnhancedDecoder(initial.model, settings)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors and the losses of encoder and decoder."""
        hidden_BLH = self.model(batch.text)
        vectors_BH = pool(hidden_BLH, batch.text.mask, self.pooling)
        decoded_NH = self.decoder(*self.decoder.streams(vectors_BH, self.model, batch.original), batch)
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.labels, batch.labelled),
            "decoder": masked_lm_loss(self.model.vocabulary(decoded_NH), batch.ordinary_ids),
        }


def summed_queries(vectors_BH: Tensor, positions_QH: Tensor, model: Backbone) -> Tensor:
    """Return H1 [B, Q, H] as rebuilt from equation 2: h + p_i."""
    return vectors_BH[:, None] + positions_QH


def embedded_queries(vectors_BH: Tensor, positions_QH: Tensor, model: Backbone) -> Tensor:
    """Return H1 [B, Q, H] as in DupMAE's released code: Dropout(LN(h + p_i + t_0)), with h as the word embedding."""
    return model.embed_sums(summed_queries(vectors_BH, positions_QH, model))


QUERY_STREAMS = {"sum": summed_queries, "embedded": embedded_queries}


def context_stream(vectors_BH: Tensor, embedded_BLH: Tensor) -> Tensor:
    """Return H2 [B, L, H] (equation 2): h, then the embeddings of the unmasked tokens."""
    return torch.cat([vectors_BH[:, None], embedded_BLH[:, 1:]], dim=1)


class EnhancedDecoder(nn.Module):
    """One BERT layer: H1 attends to H2 (equation 3); the residual connection carries H1."""

    def __init__(self, model: Backbone, settings: Settings) -> None:
        super().__init__()
        if settings.query_stream == "embedded":
            model.check_width("query_stream embedded")
        self.query_stream = QUERY_STREAMS[settings.query_stream]
        self.own_positions = OwnPositions(model, settings.max_tokens)
        self.layer = Layer(model.config)
        self.layer.apply(lambda module: initialise(module, model.config.initializer_range))

    def streams(self, vectors_BH: Tensor, model: Backbone, ids_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return H1 [B, Q, H] and H2 [B, L, H] of texts [B, L] before masking and their vectors."""
        positions_QH = self.own_positions.embeddings(model)[1 : ids_BL.shape[1]]
        embedded_BLH = self.own_positions(model.embed(ids_BL))
        return self.query_stream(vectors_BH, positions_QH, model), context_stream(vectors_BH, embedded_BLH)

    def forward(self, queries_BQH: Tensor, context_BLH: Tensor, batch: Batch) -> Tensor:
        """Return the hidden states [N, H] of ordinary tokens; those of [SEP] and padding are not computed."""
        visible_BQL = position_specific_mask(batch.words, batch.budgets, batch.text.mask, batch.word_limits)
        after_cls_N = batch.ordinary - batch.ordinary // batch.words.shape[1] - 1  # flat positions without a column
        rows = Packing(batch.words[:, 1:] >= 0, visible_BQL[:, None], positions_N=after_cls_N)
        columns = Packing(batch.text.mask, positions_N=batch.text.positions)
        queries_NH, attention = rows.packed(queries_BQH), self.layer.attention
        attended_NH = attention.self.attend(queries_NH, columns.packed(context_BLH), rows=rows, columns=columns)
        mixed_NH = attention.output(attended_NH, queries_NH)
        decoded_NH: Tensor = self.layer.output(self.layer.intermediate(mixed_NH), mixed_NH)
        return decoded_NH


def position_specific_mask(
    words_BL: Tensor, budgets_B: Tensor, real_BL: Tensor, limits: tuple[int, int] | None = None
) -> Tensor:
    """Return M [B, Q, L] (equation 5), True where a position after [CLS] may attend to a column.

    Each position picks one of the text's random whole-word masks. All positions see [CLS] and [SEP]; no position
    sees itself or padding. `limits` are the words' `word_limits`, if they are known.
    """
    batch, length = words_BL.shape
    hidden_BRL = sample_masks(words_BL, budgets_B, min(length, MAX_MASKS), limits)
    picked_BQ = torch.randint(hidden_BRL.shape[1], (batch, length - 1), device=words_BL.device)
    hidden_BQL = hidden_BRL.gather(1, picked_BQ[..., None].expand(-1, -1, length))
    itself_QL = torch.eye(length, dtype=torch.bool, device=words_BL.device)[1:]
    return real_BL[:, None] & ~hidden_BQL & ~itself_QL
