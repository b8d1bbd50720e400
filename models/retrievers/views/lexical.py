"""The lexical view: a weight for every WordPiece token of the vocabulary, compared by inner products.

Every token votes for the words that it makes likely, and a word's weight is its strongest vote, so that texts are
matched by words that they mean but do not contain. Formal et al., SPLADE v2 (the maximum of log(1 + ReLU(logit)));
CAME, section 3.2.2, equation 4; CoT-MoTE, section 2.1, equation 4, with E for the head. DupMAE (Xiao and Liu,
RetroMAE v2, section 3.2, equations 7, 11 and 12) takes the maxima as they are, without special tokens, and keeps the
N largest of a passage: a query's weights count only at the WordPiece tokens that the passage has kept.

Shape suffixes: B batch, L length, H hidden, V vocabulary, N rows (positions or texts), Q queries, P passages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from models.layers.bert import BertConfig, BertForMaskedLM
from models.layers.max_logits import word_maxima
from models.representation import Representation, Role, inner_products
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens

Activation = Literal["log1p_relu", "relu", "none"]
# All of them rise, so they may follow the maximum: the same numbers.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "log1p_relu": lambda maxima: torch.log1p(torch.relu(maxima)),
    "relu": torch.relu,
    "none": lambda maxima: maxima,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the papers vary."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    activation: Activation
    """What becomes of the largest logit; `none` as DupMAE prints it."""
    head: Literal["mlm", "embeddings", "own"]
    """What gives the logits: the masked language model's head, the word embeddings alone (h E^T), or a matrix of its
    own, as DupMAE prints it and pre-trains it."""
    pool_specials: bool
    """Whether [CLS] and [SEP] vote too; padding never does."""
    top_passages: int | None
    """How many WordPiece tokens a passage keeps, those of the largest weights; null for all."""
    top_queries: int | None
    weight: float = 1.0
    """The weight of the view's scores in the sum."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS or self.head not in ("mlm", "embeddings", "own"):
            raise ValueError(f"expected an activation of {', '.join(ACTIVATIONS)}, and a head of mlm, embeddings, own")
        for name, top in (("top_passages", self.top_passages), ("top_queries", self.top_queries)):
            if top is not None and top < 1:
                raise ValueError(f"{name}: expected 1 or more, or null for all WordPiece tokens")
        if not 0 < self.weight < float("inf"):
            raise ValueError("weight: expected a number above 0; leave the view out where it shall not count")


class View(nn.Module):
    """The pooled logits of the vocabulary; besides the BERT and its head it learns only a matrix of its own."""

    def __init__(self, config: BertConfig, settings: Settings, tokenizer: Tokenizer) -> None:
        super().__init__()
        for name, top in (("top_passages", settings.top_passages), ("top_queries", settings.top_queries)):
            if top is not None and top > config.vocab_size:
                raise ValueError(f"lexical.{name}: expected at most the vocabulary's {config.vocab_size}, got {top}")
        self.settings = settings
        self.cls, self.sep = tokenizer.cls, tokenizer.sep
        self.projection: nn.Linear | None = None
        if settings.head == "own":
            self.projection = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: BertForMaskedLM) -> Representation:
        """The lexical part [B, V] alone, in single precision."""
        pool_BL = tokens.mask
        if not self.settings.pool_specials:
            pool_BL = pool_BL & (tokens.ids != self.cls) & (tokens.ids != self.sep)
        weights_BV = ACTIVATIONS[self.settings.activation](self._maxima(hidden_BLH[pool_BL], pool_BL, model))
        top = self.settings.top_queries if role == "query" else self.settings.top_passages
        return Representation(lexical=weights_BV if top is None else weights_BV * largest(weights_BV, top))

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """Inner products [Q, P], in single precision: sums over what both sides have kept."""
        if queries.lexical is None or passages.lexical is None:
            raise ValueError("the lexical view's similarity: expected a lexical part on both sides")
        return inner_products(queries.lexical, passages.lexical)

    def _maxima(self, hidden_NH: Tensor, pool_BL: Tensor, model: BertForMaskedLM) -> Tensor:
        """[B, V]"""
        words_VH, head = model.bert.embeddings.word_embeddings.weight, model.cls.predictions
        if self.projection is not None:
            return word_maxima(hidden_NH, self.projection.weight, pool_BL)
        if self.settings.head == "mlm":
            return word_maxima(head.transform(hidden_NH), words_VH, pool_BL, head.bias)
        return word_maxima(hidden_NH, words_VH, pool_BL)


def largest(weights_NV: Tensor, top: int) -> Tensor:
    """[N, V], True at the `top` largest weights of each row; of equal ones the first WordPiece tokens. No gradient."""
    weights_NV = weights_NV.detach()
    least_N1 = weights_NV.topk(top, dim=1).values[:, -1:]
    above_NV, equal_NV = weights_NV > least_N1, weights_NV == least_N1
    return above_NV | (equal_NV & (equal_NV.cumsum(1) <= top - above_NV.sum(1, keepdim=True)))


def flops(weights_NV: Tensor) -> Tensor:
    """What an inverted index pays for a WordPiece token, summed over all: sum_v (mean over the rows of |x_v|)^2.

    Paria et al., Minimizing FLOPs to Learn Efficient Sparse Representations; the regulariser of SPLADE and CAME.
    """
    return (weights_NV.float().abs().mean(0) ** 2).sum()


def mean_nonzero(weights_NV: Tensor) -> Tensor:
    """How many WordPiece tokens of a text have a weight other than 0, a mean over the rows."""
    return (weights_NV != 0).sum(1).float().mean()
