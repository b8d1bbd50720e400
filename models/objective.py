"""What is minimised: named losses, computed in two steps so that one loop can train everything.

`encode` sees a chunk of a batch and returns vectors and the losses that are local to the chunk;
`compare` sees the vectors of the whole batch, once. A loop can so cache gradients at the vectors
(GradCache) without knowing what it trains.
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
        """Some of the rows, as a batch."""
        ...

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        ...


@runtime_checkable
class WeightedTerms(Protocol):
    """A batch whose local losses are means over something else than its rows, such as masked positions."""

    def num_terms(self, loss: str) -> int:
        """Over how many terms the loss of this name is a mean."""
        ...


def num_terms(batch: Batch, loss: str) -> int:
    """How much a chunk's local loss weighs in the mean over its batch: by rows, unless the batch says otherwise."""
    return batch.num_terms(loss) if isinstance(batch, WeightedTerms) else len(batch)


class Objective(Protocol):
    """A module that can be trained."""

    def encode(self, batch: Any) -> tuple[Vectors, Losses]:
        """The chunk's vectors, rows first, and the losses that need no other chunk, each a mean over the chunk."""
        ...

    def compare(self, vectors: Vectors, batch: Any) -> Losses:
        """The losses over the vectors of the whole batch."""
        ...


def concatenate(chunks: Sequence[Vectors]) -> Vectors:
    """The vectors of the whole batch from those of its chunks."""
    return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
