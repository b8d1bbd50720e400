"""The interface of a training objective: named losses, computed in two steps, so that one loop trains every model.

`encode` reads a chunk of a batch and returns its vectors and the losses that are local to the chunk. `compare` reads
the vectors of the complete batch, once. This lets the loop cache gradients at the vectors (GradCache) of any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Vectors = tuple[Tensor, ...]
Losses = dict[str, Tensor]


class Batch(Protocol):
    """A batch that can be split into chunks of rows."""

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Batch:
        """Return the rows from `start` up to `stop` as a batch."""
        ...

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        ...


@runtime_checkable
class WeightedTerms(Protocol):
    """A batch whose local losses are means over terms other than its rows, such as masked positions."""

    def num_terms(self, loss: str) -> int:
        """Return the number of terms over which the loss of this name is a mean."""
        ...


def num_terms(batch: Batch, loss: str) -> int:
    """Return a chunk's weight in the batch's mean of a local loss: its number of terms, or else of rows."""
    return batch.num_terms(loss) if isinstance(batch, WeightedTerms) else len(batch)


class Objective(Protocol):
    """The two steps of a training objective, implemented by an `nn.Module`."""

    def encode(self, batch: Any) -> tuple[Vectors, Losses]:
        """Return the chunk's vectors, rows first, and its local losses, each a mean over the chunk."""
        ...

    def compare(self, vectors: Vectors, batch: Any) -> Losses:
        """Return the losses over the vectors of the complete batch."""
        ...


class LocalObjective(nn.Module):
    """The base of an objective whose losses are all local: it compares no vectors."""

    def compare(self, vectors: Vectors, batch: Any) -> Losses:
        """Return no losses."""
        return {}


def concatenate(chunks: Sequence[Vectors]) -> Vectors:
    """Concatenate the vectors of a batch's chunks."""
    return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
