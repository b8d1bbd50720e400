"""How alike queries and passages are: functions from two representations to scores [queries, passages]."""

from __future__ import annotations

from torch import Tensor

from models.representation import Representation


def dot(queries: Representation, passages: Representation) -> Tensor:
    """Inner products of the dense views [Q, P]."""
    if queries.dense is None or passages.dense is None:
        raise ValueError("the dot product needs a dense view on both sides")
    return queries.dense @ passages.dense.T
