"""CoT-MAE: a contextual masked auto-encoder.

A deep encoder reads a masked passage; a shallow decoder must recover a context of it (a pseudo-query, in
query-as-context pre-training) from little more than the encoder's one vector. What the decoder cannot see,
the vector has to say.

Wu et al., Query-as-context Pre-training for Dense Passage Retrieval, sections 2.2 and 3.1. Two decoders: `ae`
as the paper prints it (a masked language model over the context, equations 8-11), `ar` as its authors released
it (each token of the context is predicted from the vector and a window of tokens before it).

Shape suffixes: B batch, L length of the passage, C length of the context, H hidden, N selected positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from models.bert import BertConfig, BertForMaskedLM, Layer, SelfAttention, initialise
from models.losses import masked_lm_loss
from models.masking import IGNORED, Ids, mask_words
from models.objective import Losses, Vectors
from models.representation import Pooling, pooled
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the paper's table rows vary."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    decoder: Literal["ar", "ae"]
    decoder_layers: int
    window: int
    """`ar` only: how many tokens, its own included, a position sees beside the vector; 0 for all before it."""
    text_mask_rate: float
    context_mask_rate: float
    """`ae` only."""
    max_tokens: int
    """Of a passage, with [CLS] and [SEP]; a longer one is cropped at both ends."""
    context_max_tokens: int

    def __post_init__(self) -> None:
        if not (0 < self.text_mask_rate <= 1 and 0 < self.context_mask_rate <= 1):
            raise ValueError("text_mask_rate and context_mask_rate: expected shares above 0 and at most 1")
        if self.decoder_layers < 1 or self.window < 0:
            raise ValueError("decoder_layers: expected 1 or more; window: expected 0 or more")
        if min(self.max_tokens, self.context_max_tokens) < 3:
            raise ValueError("max_tokens and context_max_tokens: expected 3 or more, [CLS] and [SEP] being two")


@dataclass(frozen=True)
class Batch:
    """Masked passages and contexts with the ids to recover; labels are IGNORED where nothing is asked."""

    text: Tokens
    text_labels: Tensor
    context: Tokens
    context_labels: Tensor

    def __len__(self) -> int:
        return len(self.text.ids)

    def num_terms(self, loss: str) -> int:
        """At how many positions a loss asks for a token; no decoder is asked for the first, [CLS]."""
        labels = {"mlm": self.text_labels, "context": self.context_labels[:, 1:]}[loss]
        return int((labels != IGNORED).sum())

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the rows."""

        def cut(tokens: Tokens) -> Tokens:
            return Tokens(tokens.ids[start:stop], tokens.mask[start:stop])

        return Batch(cut(self.text), self.text_labels[start:stop], cut(self.context), self.context_labels[start:stop])

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(
            self.text.to(device), self.text_labels.to(device), self.context.to(device), self.context_labels.to(device)
        )


def make_batch(
    texts: Sequence[Sequence[int]], contexts: Sequence[Sequence[int]], tokenizer: Tokenizer, settings: Settings,
    random: Generator,
) -> Batch:  # fmt: skip
    """Crop, add special tokens, mask and pad. `texts` and `contexts` are ids without special tokens."""
    inputs, labels = mask_words(
        [framed(ids, settings.max_tokens, tokenizer, random) for ids in texts],
        tokenizer,
        settings.text_mask_rate,
        random,
    )
    whole = [framed(ids, settings.context_max_tokens, tokenizer, random) for ids in contexts]
    asked = whole
    if settings.decoder == "ae":
        whole, asked = mask_words(whole, tokenizer, settings.context_mask_rate, random)
    return Batch(
        pad(inputs, tokenizer.pad), pad(labels, IGNORED).ids, pad(whole, tokenizer.pad), pad(asked, IGNORED).ids
    )


def framed(ids: Sequence[int], max_tokens: int, tokenizer: Tokenizer, random: Generator) -> Ids:
    """[CLS] ids [SEP], of at most `max_tokens`: what is too much leaves at both ends, split at random."""
    excess = max(0, len(ids) - (max_tokens - 2))
    left = int(random.integers(excess + 1))
    return np.array([tokenizer.cls, *ids[left : len(ids) - (excess - left)], tokenizer.sep], dtype=np.int64)


class Pretraining(nn.Module):
    """L = L_mlm + L_ctx (equation 11)."""

    def __init__(self, model: BertForMaskedLM, settings: Settings, pooling: Pooling) -> None:
        super().__init__()
        longest = max(settings.max_tokens, settings.context_max_tokens)
        if longest > model.config.max_position_embeddings:
            raise ValueError(f"max_tokens: expected at most {model.config.max_position_embeddings}, found {longest}")
        self.model, self.pooling = model, pooling
        kind = AutoRegressiveDecoder if settings.decoder == "ar" else MaskedDecoder
        self.decoder = kind(model, settings)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Both losses are local to a chunk; no vectors are compared."""
        hidden_BLH = self.model.bert(batch.text.ids, batch.text.mask)
        vectors_BH = pooled(hidden_BLH, batch.text.mask, self.pooling)
        asked_BL = batch.text_labels != IGNORED
        context_logits, context_labels = self.decoder(vectors_BH, batch.context, batch.context_labels)
        return (), {
            "mlm": masked_lm_loss(self.model.vocabulary(hidden_BLH[asked_BL]), batch.text_labels[asked_BL]),
            "context": masked_lm_loss(context_logits, context_labels),
        }

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Nothing: the objective has no contrast."""
        return {}


class MaskedDecoder(nn.Module):
    """BERT layers over the masked context, whose first position is the passage's vector (equations 8-10)."""

    def __init__(self, model: BertForMaskedLM, settings: Settings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(model.config) for _ in range(settings.decoder_layers))
        self.layers.apply(lambda module: initialise(module, model.config.initializer_range))
        self.vocabulary, self.embeddings = _shared(model)

    def forward(self, vectors_BH: Tensor, context: Tokens, labels_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, V] at the masked positions, and their labels [N]."""
        hidden_BCH = torch.cat([vectors_BH[:, None], self.embeddings(context.ids)[:, 1:]], dim=1)
        for layer in self.layers:
            hidden_BCH = layer(hidden_BCH, context.mask[:, None, None, :])
        asked_BC = labels_BC != IGNORED
        return self.vocabulary(hidden_BCH[asked_BC]), labels_BC[asked_BC]


class AutoRegressiveDecoder(nn.Module):
    """GPT-2's pre-norm blocks over [vector, context]; every next token, [SEP] too, is predicted."""

    def __init__(self, model: BertForMaskedLM, settings: Settings) -> None:
        super().__init__()
        self.window = settings.window
        self.dropout = model.config.hidden_dropout_prob
        blocks = [PreNormBlock(model.config, settings.decoder_layers) for _ in range(settings.decoder_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(model.config.hidden_size, eps=model.config.layer_norm_eps)
        self.vocabulary, self.embeddings = _shared(model)

    def forward(self, vectors_BH: Tensor, context: Tokens, labels_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, V] of every next token, and their labels [N]; padding asks nothing."""
        hidden_BCH = torch.cat([vectors_BH[:, None], self.embeddings(context.ids)[:, 1:]], dim=1)
        hidden_BCH = dropout(hidden_BCH, self.dropout, self.training)
        visible = window_mask(context.ids.shape[1], self.window, context.ids.device) & context.mask[:, None, None, :]
        for block in self.blocks:
            hidden_BCH = block(hidden_BCH, visible)
        next_BC = labels_BC[:, 1:]
        asked_BC = next_BC != IGNORED
        return self.vocabulary(self.norm(hidden_BCH[:, :-1][asked_BC])), next_BC[asked_BC]


class PreNormBlock(nn.Module):
    """x += Attention(LN(x)); x += MLP(LN(x)). What is added to x starts small where there are many blocks."""

    def __init__(self, config: BertConfig, num_blocks: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = SelfAttention(config)
        self.attention_output = nn.Linear(config.hidden_size, config.hidden_size)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.widen = nn.Linear(config.hidden_size, config.intermediate_size)
        self.narrow = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = config.hidden_dropout_prob
        self.apply(lambda module: initialise(module, config.initializer_range))
        for projection in (self.attention_output, self.narrow):
            nn.init.normal_(projection.weight, 0.0, config.initializer_range / math.sqrt(2 * num_blocks))

    def forward(self, x_BCH: Tensor, visible: Tensor) -> Tensor:
        attended = self.attention_output(self.attention(self.attention_norm(x_BCH), visible))
        x_BCH = x_BCH + dropout(attended, self.dropout, self.training)
        return x_BCH + dropout(self.narrow(gelu(self.widen(self.mlp_norm(x_BCH)))), self.dropout, self.training)


def window_mask(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """[C, C], True where row i may see column j: column 0, the vector, and the last `window` columns up to i."""
    row, column = torch.arange(length, device=device)[:, None], torch.arange(length, device=device)
    recent = (column <= row) & ((row - column < window) if window > 0 else torch.tensor(True, device=device))
    return recent | (column == 0)


def _shared(model: BertForMaskedLM) -> tuple[Any, Any]:
    """The encoder's head phi and embeddings as plain functions: the decoder uses them but does not own them."""
    return model.vocabulary, lambda ids_BC: model.bert.embeddings(ids_BC)
