"""The interface of a training objective: named losses, computed in two steps, so that one loop trains every model.

`encode` reads a chunk of a batch and returns its vectors and the losses that are local to the chunk. `compare` reads
the vectors of the complete batch, once. So the loop can cache gradients at the vectors (GradCache) of any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Vectors = tuple[Tensor, ...]
Losses = dict[str, Tensor]


class Batch(Protocol):
    """Rows that can be cut into chunks of whole rows."""

    def __len__(self) -> int: ...

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` up to `stop`, as a batch."""
        ...

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        ...


@runtime_checkable
class WeightedTerms(Protocol):
    """A batch with local losses that are means over other terms than its rows, such as masked positions."""

    def num_terms(self, loss: str) -> int:
        """The number of terms that the loss of this name is a mean over."""
        ...


def num_terms(batch: Batch, loss: str) -> int:
    """The weight of a chunk's local loss in the mean over its batch: its rows, or its own number of terms."""
    return batch.num_terms(loss) if isinstance(batch, WeightedTerms) else len(batch)


class Objective(Protocol):
    """A module that can be trained."""

    def encode(self, batch: Any) -> tuple[Vectors, Losses]:
        """The chunk's vectors, rows first, and its local losses, each a mean over the chunk."""
        ...

    def compare(self, vectors: Vectors, batch: Any) -> Losses:
        """The losses over the vectors of the complete batch."""
        ...


def concatenate(chunks: Sequence[Vectors]) -> Vectors:
    """The vectors of the complete batch, from those of its chunks."""
    return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
