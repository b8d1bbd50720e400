"""The dense view: one vector per text, compared by inner products.

In most papers it is the pooled hidden state (Karpukhin et al., DPR; equation 12 of query-as-context pre-training).
DupMAE (Xiao and Liu, RetroMAE v2, section 3.2, equation 10) projects [CLS] to 384 dimensions by W_cls, so that vector
and lexical weights together are as small as one vector of BERT.

Shape suffixes: B batch, L length, H hidden, D dimension, Q queries, P passages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from models.layers.backbone import Backbone
from models.layers.bert_config import BertConfig
from models.representation import Pooling, Representation, Role, inner_products, pool
from models.settings import VALIDATED, check_weight, omitted_at
from models.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class DenseSettings:
    """The projection of the dense view, and its weight in the sum of scores."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dim: int | None
    """D, the dimension to which a matrix projects vectors of queries and passages; null for no projection."""
    weight: float = 1.0
    """The weight of the view's scores in the sum of scores."""
    bias: Annotated[bool, omitted_at(False)] = False
    """Whether the projection has a bias, as in COIL's code (`nn.Linear` for [CLS])."""
    normalise: Annotated[bool | None, omitted_at(None)] = None
    """Whether vectors have length 1, so that their inner product is the cosine; null for what the initial checkpoint
    states, which is false but for models of sentence-transformers."""

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim < 1:
            raise ValueError("dim: expected 1 or more, or null for no projection")
        if self.bias and self.dim is None:
            raise ValueError("bias: a bias belongs to a projection; expected a dim, or a bias of false")
        check_weight(self.weight)


class DenseView(nn.Module):
    """The pooled hidden state, projected if there is a dimension, and normalised to length 1 if requested."""

    def __init__(self, config: BertConfig, settings: DenseSettings, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.normalise = bool(settings.normalise)
        self.projection: nn.Linear | None = None
        if settings.dim is not None:
            self.projection = nn.Linear(config.hidden_size, settings.dim, bias=settings.bias)
            nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)
            if settings.bias:
                nn.init.zeros_(self.projection.bias)

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: Backbone) -> Representation:
        """Return a representation with only the dense part [B, D], in float32."""
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            vectors_BD = pool(hidden_BLH.float(), tokens.mask, self.pooling)
            if self.projection is not None:
                vectors_BD = self.projection(vectors_BD)
            return Representation(dense=normalize(vectors_BD, dim=-1) if self.normalise else vectors_BD)

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """Return the inner products [Q, P] in float32."""
        if queries.dense is None or passages.dense is None:
            raise ValueError("the dense view's similarity: expected a dense part on both sides")
        return inner_products(queries.dense, passages.dense)
