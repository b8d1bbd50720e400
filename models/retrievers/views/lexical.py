"""The lexical view: a weight for every WordPiece token of the vocabulary, compared by inner products.

Each position predicts logits over the vocabulary, and a token's weight is its maximum over positions, so texts also
match by related words that they do not contain. Formal et al., SPLADE v2: the maximum of log(1 + ReLU(logit)). CAME,
section 3.2.2, equation 4; CoT-MoTE, section 2.1, equation 4, with the head E. DupMAE (Xiao and Liu, RetroMAE v2,
section 3.2, equations 7, 11 and 12) uses the maximum logits without special tokens and keeps the N largest of a
passage: the other tokens of the vocabulary do not contribute to the passage's scores.

Shape suffixes: B batch, L length, H hidden, V vocabulary, N rows (positions or texts), Q queries, P passages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from models.layers.backbone import Backbone
from models.layers.bert_config import BertConfig
from models.layers.max_logits import max_logits
from models.representation import Representation, Role, inner_products
from models.settings import VALIDATED, check_weight
from models.tokens import Tokenizer, Tokens

Activation = Literal["log1p_relu", "relu", "none"]
# All are monotonic, so they are applied after the maximum, with the same result.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "log1p_relu": lambda maxima: torch.log1p(torch.relu(maxima)),
    "relu": torch.relu,
    "none": lambda maxima: maxima,
}


@dataclass(frozen=True, kw_only=True)
class LexicalSettings:
    """The settings in which SPLADE, DupMAE, CoT-MoTE and CAME's lexical expert differ."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    activation: Activation
    """The function applied to the maximum logit; `none` as DupMAE prints it."""
    head: Literal["mlm", "embeddings", "own"]
    """The source of logits: the MLM head, the word embeddings only (h E^T), or a separate matrix, which DupMAE prints
    and pre-trains."""
    pool_specials: bool
    """Whether [CLS] and [SEP] take part in the maximum; padding never does."""
    top_passages: int | None
    """The number of largest weights that a passage keeps; null for all."""
    top_queries: int | None
    weight: float = 1.0
    """The weight of the view's scores in the sum of scores."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS or self.head not in ("mlm", "embeddings", "own"):
            raise ValueError(f"expected an activation of {', '.join(ACTIVATIONS)}, and a head of mlm, embeddings, own")
        for name, top in (("top_passages", self.top_passages), ("top_queries", self.top_queries)):
            if top is not None and top < 1:
                raise ValueError(f"{name}: expected 1 or more, or null for all WordPiece tokens")
        check_weight(self.weight)


class LexicalView(nn.Module):
    """The pooled logits of the vocabulary; the view's only own parameter is the matrix of head `own`."""

    def __init__(self, config: BertConfig, settings: LexicalSettings, tokenizer: Tokenizer) -> None:
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

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: Backbone) -> Representation:
        """Return a representation with only the lexical part [B, V], in float32."""
        pool_BL = tokens.mask
        if not self.settings.pool_specials:
            pool_BL = pool_BL & (tokens.ids != self.cls) & (tokens.ids != self.sep)
        if hidden_BLH.device.type == "cpu":
            hidden_NH, computed_BL = hidden_BLH[pool_BL], pool_BL
        else:  # the host would wait for the number of pooled positions
            computed_BL = tokens.computed
            hidden_NH = hidden_BLH.flatten(0, 1).index_select(0, tokens.positions)
        weights_BV = ACTIVATIONS[self.settings.activation](self._max_logits(hidden_NH, pool_BL, computed_BL, model))
        top = self.settings.top_queries if role == "query" else self.settings.top_passages
        return Representation(lexical=weights_BV if top is None else weights_BV * largest(weights_BV, top))

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """Return the inner products [Q, P] in float32."""
        if queries.lexical is None or passages.lexical is None:
            raise ValueError("the lexical view's similarity: expected a lexical part on both sides")
        return inner_products(queries.lexical, passages.lexical)

    def _max_logits(self, hidden_NH: Tensor, pool_BL: Tensor, computed_BL: Tensor, model: Backbone) -> Tensor:
        """Return the maximum logits [B, V] of the settings' head; `hidden_NH` are those of the computed positions."""
        if self.projection is not None:
            return max_logits(hidden_NH, self.projection.weight, pool_BL, computed_BL=computed_BL)
        if self.settings.head == "mlm":
            matrix_VE, bias_V = model.output
            return max_logits(model.transform(hidden_NH), matrix_VE, pool_BL, bias_V, computed_BL=computed_BL)
        return max_logits(hidden_NH, model.words, pool_BL, computed_BL=computed_BL)


def largest(weights_NV: Tensor, top: int) -> Tensor:
    """Return a mask [N, V] of the `top` largest weights of each row; ties go to the smaller token id; no gradient."""
    weights_NV = weights_NV.detach()
    least_N1 = weights_NV.topk(top, dim=1).values[:, -1:]
    above_NV, equal_NV = weights_NV > least_N1, weights_NV == least_N1
    return above_NV | (equal_NV & (equal_NV.cumsum(1) <= top - above_NV.sum(1, keepdim=True)))


def flops(weights_NV: Tensor) -> Tensor:
    """Return sum_v (mean over the rows of |x_v|)^2, a smooth estimate of the operations per pair in an inverted index.

    Paria et al., Minimizing FLOPs to Learn Efficient Sparse Representations; the regulariser of SPLADE and CAME.
    """
    return (weights_NV.float().abs().mean(0) ** 2).sum()


def mean_nonzero(weights_NV: Tensor) -> Tensor:
    """Return the mean number of weights other than 0 over the rows."""
    return (weights_NV != 0).sum(1).float().mean()
