"""Nested dimensions of vectors.

Matryoshka (Kusupati et al. 2022, Matryoshka Representation Learning, section 3): the first dimensions of a vector are
trained to be a vector of their own, by the same loss, so that vectors can be truncated after the training. All losses
have the weight 1, as in the paper.

Shape suffixes: N texts, D dimension.
"""

from __future__ import annotations

from dataclasses import replace

from torch.nn.functional import normalize

from models.representation import Representation


def truncated(texts: Representation, dim: int, *, normalise: bool) -> Representation:
    """Return the first dimensions of dense vectors, normalised again if the complete vectors are."""
    if texts.dense is None:
        raise ValueError("truncated dimensions: expected dense vectors")
    first_ND = texts.dense[:, :dim]
    return replace(texts, dense=normalize(first_ND, dim=-1) if normalise else first_ND)
