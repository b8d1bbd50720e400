"""How alike queries and passages are: what the similarities of all views are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def inner_products(queries_QD: Tensor, passages_PD: Tensor) -> Tensor:
    """Of every query with every passage [Q, P], in single precision also where autocast would round."""
    with torch.autocast(queries_QD.device.type, enabled=False):
        return queries_QD.float() @ passages_PD.float().T
