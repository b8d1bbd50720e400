"""Current additions to the contrastive loss: nested dimensions, and passages that are left out as likely relevant.

Matryoshka (Kusupati et al. 2022, Matryoshka Representation Learning, section 3): the first dimensions of a vector are
trained to be a vector of their own, by the same loss, so that vectors can be truncated after the training. All losses
have the weight 1, as in the paper.

False negatives (Zhang et al. 2025, Qwen3 Embedding, section 3): a passage of the batch whose score exceeds that of the
query's positive by more than a margin may be relevant too, so the softmax leaves it out; there the margin is 0.1.

Shape suffixes: Q queries, P passages, D dimension.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from models.representation import Representation


def truncated(texts: Representation, dim: int, *, normalise: bool) -> Representation:
    """Return the first dimensions of dense vectors, normalised again if the complete vectors are."""
    if texts.dense is None:
        raise ValueError("truncated dimensions: expected dense vectors")
    first_ND = texts.dense[:, :dim]
    return replace(texts, dense=normalize(first_ND, dim=-1) if normalise else first_ND)


def likely_relevant(scores_QP: Tensor, positives_Q: Tensor, margin: float) -> Tensor:
    """Return a mask [Q, P], True where a passage scores above a query's positive by more than the margin.

    The positive itself is never left out, whatever the rounding. There is no gradient.
    """
    scores_QP = scores_QP.detach().float()
    above_QP = scores_QP > scores_QP.gather(1, positives_Q[:, None]) + margin
    return above_QP.scatter(1, positives_Q[:, None], torch.zeros_like(above_QP[:, :1]))
