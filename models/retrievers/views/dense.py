"""The dense view: one vector a text, compared by inner products.

The pooled hidden state itself in most papers (Karpukhin et al., DPR; equation 12 of query-as-context pre-training). A
projection makes it small enough to leave room for a lexical view: DupMAE (Xiao and Liu, RetroMAE v2, section 3.2,
equation 10) maps [CLS] to 384 dimensions by W_cls.

Shape suffixes: B batch, L length, H hidden, D dimension, Q queries, P passages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.layers.bert import BertConfig, BertForMaskedLM
from models.representation import Pooling, Representation, Role, inner_products, pool
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the papers vary."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dim: int | None
    """D, to which one matrix maps the vectors of queries and passages; null leaves them as they are."""
    weight: float = 1.0
    """The weight of the view's scores in the sum."""

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim < 1:
            raise ValueError("dim: expected 1 or more, or null for no projection")
        if not 0 < self.weight < float("inf"):
            raise ValueError("weight: expected a number above 0; leave the view out where it shall not count")


class View(nn.Module):
    """The pooled hidden state, projected where a dimension is given; the projection has no bias and new parameters."""

    def __init__(self, config: BertConfig, settings: Settings, tokenizer: Tokenizer, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.projection: nn.Linear | None = None
        if settings.dim is not None:
            self.projection = nn.Linear(config.hidden_size, settings.dim, bias=False)
            nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: BertForMaskedLM) -> Representation:
        """The dense part [B, D] alone, in single precision."""
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            vectors_BD = pool(hidden_BLH.float(), tokens.mask, self.pooling)
            return Representation(dense=vectors_BD if self.projection is None else self.projection(vectors_BD))

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """Inner products [Q, P], in single precision."""
        if queries.dense is None or passages.dense is None:
            raise ValueError("the dense view's similarity: expected a dense part on both sides")
        return inner_products(queries.dense, passages.dense)
