"""The batch of a training step. Each process builds only the rows that it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from models.objective import Batch, num_terms
from models.tokens import num_tokens
from tasks.runtime import distributed
from tasks.training.grad_cache import Span, split_into_chunks


@dataclass(frozen=True)
class StepBatch:
    """The chunks of a batch that this process computes; other processes have the others.

    `compare` of its objective must need the vectors only.
    """

    chunks: Mapping[Span, Batch]
    size: int
    """The number of rows of the complete batch."""
    totals: dict[str, int] = field(default_factory=dict)
    """The number of terms of the complete batch, by loss."""

    def __len__(self) -> int:
        return self.size

    def rows(self, start: int, stop: int) -> Batch:
        """Return one of this process's chunks."""
        return self.chunks[start, stop]

    def to(self, device: torch.device) -> StepBatch:
        """Return the batch as it is: the vectors are compared without it, and each chunk is moved to be encoded."""
        return self

    def pin_memory(self) -> StepBatch:
        """Return the batch in pinned memory; batches of pre-training are `Rows`."""
        chunks: dict[Span, Any] = dict(self.chunks)
        return replace(self, chunks={span: chunk.pin_memory() for span, chunk in chunks.items()})

    def num_terms(self, loss: str) -> int:
        """Return the number of terms of a loss in the complete batch; every process must call it equally often."""
        if loss not in self.totals:
            own = sum(num_terms(chunk, loss) for chunk in self.chunks.values())
            self.totals[loss] = distributed.sum_integer(own)
        return self.totals[loss]

    def num_tokens(self) -> int:
        """Return the number of tokens of the complete batch; every process must call it."""
        return distributed.sum_integer(sum(map(num_tokens, self.chunks.values())))


@dataclass(frozen=True)
class StepBatches:
    """Builds the batch of a step: the rows of this process, chunk by chunk."""

    build: Callable[[int, int, int], Batch]
    """Returns the rows of a step from one up to another."""
    size: int
    """The number of rows of the complete batch."""
    spans: list[Span]
    """The chunks of this process."""

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step."""
        if self.spans == [(0, self.size)]:
            return self.build(step, 0, self.size)
        return StepBatch({span: self.build(step, *span) for span in self.spans}, self.size)


def own_spans(size: int, chunk: int | None) -> list[Span]:
    """Return the chunks of a batch that this process computes."""
    spans = split_into_chunks(size, chunk)
    return [spans[number] for number in distributed.shard_of_rank(spans)]
