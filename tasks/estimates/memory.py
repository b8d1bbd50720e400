"""The peak memory of a training or of encoding before it runs, counted on a model of its shape.

Operations run on the CPU for one and two rows, with the recipe's lengths and without computing matrix products, while
the bytes of all live tensors are recorded after each operation. Rows have the same operations, so the bytes after each
operation are a line in the number of rows (a parabola for comparisons within a batch). The peak at any number of rows
is the maximum of these. A comparison that works block by block grows by less, in steps, so it is counted for the batch
itself up to `MOST_COMPARED` texts; blocks of more than 32 texts are not noticed. Not counted: the allocator's gaps and
the libraries' workspaces.

On a GPU a training computes in half precision with float32 weights, as autocast does; this is emulated on the CPU,
with attention that keeps no matrix of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from models.objective import Batch, Vectors
from tasks.estimates.allocations import in_half_precision, recording

COMPARED = (1, 2, 3, 16, 32)
"""Texts for which a comparison is counted: the larger numbers show whether it works block by block."""
MOST_COMPARED = 128
"""The largest batch for which a comparison in blocks is counted; beyond it grows as from half of this to this."""
ADAMW_BYTES = 8  # two float32 moments of each parameter


@dataclass(frozen=True)
class Recorded:
    """The bytes of live tensors after each operation, and the bytes that were read and written."""

    live: list[int]
    moved: int
    """Bytes that all operations but matrix products and views read and write."""
    forward: int = 0
    """The number of operations before the backward pass."""


@dataclass(frozen=True)
class TrainingMemory:
    """Counts from which the peak memory of a training step follows for any batch and chunk."""

    parameters: int
    rows_per_text: int
    """Rows of a batch for each text or query: 2 where an objective exchanges text and context."""
    encoding: Sequence[Recorded]
    """Encoding and its gradients, for 1, 2, … texts without stored gradients."""
    accumulating: Sequence[Recorded]
    """The same where gradients of an earlier chunk are stored."""
    without_graph: Sequence[Recorded]
    """Encoding without gradients, for 1, 2, … texts: chunks after the first, before the comparison."""
    comparing: Mapping[int, Recorded]
    """The comparison and its gradients, by the number of texts; empty without vectors."""
    vector_bytes: int
    """Bytes of a text's vectors."""
    compare: Callable[[int], Recorded] | None = None
    """Counts the comparison of any number of texts, in a time that grows with their pairs."""

    def peak(self, batch: int, chunk: int | None) -> int:
        """Return the bytes of weights, gradients, moments and activations at the peak of a step.

        `batch` counts texts or queries, `chunk` the batch's rows.
        """
        total = batch * self.rows_per_text
        rows = min(total, chunk or total)
        texts, chunked = rows / self.rows_per_text, rows < total
        gradients = 4 * self.parameters
        states = 4 * self.parameters + ADAMW_BYTES * self.parameters
        recorded = self.accumulating if chunked else self.encoding
        encoding = highest([record.live for record in recorded], texts) + (gradients if chunked else 0)
        kept = at([record.live[record.forward - 1] for record in self.encoding], texts)
        vectors = 2 * self.vector_bytes * batch if chunked else 0  # with the gradients at them
        comparing = kept + self._comparison(batch) if self.comparing else 0
        others = 0.0
        if chunked and self.comparing:
            others = kept + highest([record.live for record in self.without_graph], texts)
        return round(states + vectors + max(gradients, encoding, comparing, others))

    def _comparison(self, batch: int) -> float:
        """Return the peak of the comparison: a parabola, or the count where the objective compares block by block."""
        lives = {texts: record.live for texts, record in self.comparing.items()}
        largest, parabola = max(lives), [lives[texts] for texts in (1, 2, 3)]
        if abs(highest(parabola, largest) / max(1, *lives[largest]) - 1) <= 0.02:
            return highest(parabola, batch)
        if self.compare is not None:
            if batch <= MOST_COMPARED:
                return max(self.compare(batch).live)
            lives = {texts: self.compare(texts).live for texts in (MOST_COMPARED // 2, MOST_COMPARED)}
        smaller, larger = sorted(lives)[-2:]
        before, last = max(lives[smaller]), max(lives[larger])
        return last + (batch - larger) * max(0, last - before) / (larger - smaller)

    def largest_chunk(self, batch: int, memory: int) -> int | None:
        """Return the largest chunk of a batch whose step fits into a number of bytes; None if one row does not fit."""
        low, high = 0, batch * self.rows_per_text
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.peak(batch, middle) <= memory else (low, middle - 1)
        return low or None

    def moved(self, steps: int, batch: int, chunk: int | None) -> float:
        """Return the bytes that operations other than matrix products read and write in a training."""
        total = batch * self.rows_per_text
        first, second = (record.moved for record in self.encoding[:2])
        of_chunks = -(-total // (chunk or total)) * max(0, 2 * first - second)
        optimiser = 28 * self.parameters  # reads weights, gradients and moments, writes weights and moments
        return steps * (batch * (second - first) + of_chunks + optimiser)


@dataclass(frozen=True)
class EncodingMemory:
    """Counts from which the peak memory of encoding follows for any number of rows at a time."""

    parameters: int
    recorded: Sequence[Recorded]

    def peak(self, rows: int) -> int:
        """Return the bytes of weights and activations at the peak of a batch."""
        return round(4 * self.parameters + highest([record.live for record in self.recorded], rows))

    def moved(self, rows: int, per_batch: int) -> float:
        """Return the bytes that operations other than matrix products read and write."""
        first, second = (record.moved for record in self.recorded[:2])
        return rows * (second - first) + -(-rows // per_batch) * max(0, 2 * first - second)


def training_memory(objective: Any, batch_of: Callable[[int], Batch], *, half: bool) -> TrainingMemory:
    """Count a training's memory; `batch_of` returns a batch of a number of texts, `half` turns autocast on."""
    module: nn.Module = objective.train()
    encoding, accumulating, without_graph, vectors_of = [], [], [], {}
    for rows in (1, 2):
        module.zero_grad(set_to_none=True)
        vectors_of[rows], with_gradients = _encoded(objective, batch_of(rows), half)
        encoding.append(with_gradients)
        accumulating.append(_encoded(objective, batch_of(rows), half)[1])  # gradients are stored now
        with torch.no_grad(), recording() as record, in_half_precision(half):
            objective.encode(batch_of(rows))
        without_graph.append(Recorded(record.live, record.moved))
    vectors = vectors_of[1]

    @cache
    def compare(rows: int) -> Recorded:
        leaves = tuple(torch.cat([vector] * rows).requires_grad_() for vector in vectors)
        with recording() as record:
            losses = objective.compare(leaves, batch_of(rows))
            if losses:
                torch.stack(list(losses.values())).sum().backward()
        module.zero_grad(set_to_none=True)
        return Recorded(record.live or [0], record.moved)

    comparing = {rows: compare(rows) for rows in COMPARED} if vectors else {}
    module.zero_grad(set_to_none=True)
    size = sum(vector.nbytes for vector in vectors)
    return TrainingMemory(
        num_parameters(module), len(batch_of(1)), encoding, accumulating, without_graph, comparing, size, compare
    )


def encoding_memory(module: nn.Module, run: Callable[[int], object], *, half: bool) -> EncodingMemory:
    """Count the memory of encoding without gradients; `run` encodes a number of rows."""
    recorded = []
    for rows in (1, 2):
        with torch.no_grad(), recording() as record, in_half_precision(half):
            run(rows)
        recorded.append(Recorded(record.live, record.moved))
    return EncodingMemory(num_parameters(module), recorded)


def num_parameters(module: nn.Module) -> int:
    """Return the number of a module's parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def highest(counts: Sequence[Sequence[int]], rows: float) -> float:
    """Return the maximum over operations of what is counted, extrapolated to a number of rows.

    Counts of unequal numbers of operations have their maxima extrapolated instead.
    """
    if len(set(map(len, counts))) > 1:
        return at(list(map(max, counts)), rows)
    return max((at(values, rows) for values in zip(*counts, strict=True)), default=0.0)


def at(values: Sequence[int], rows: float) -> float:
    """Return the value at `rows` of the line or parabola through the values at 1, 2 (and 3)."""
    first, second, *others = values
    slope = second - first
    curvature = others[0] - 2 * second + first if others else 0
    return first + (rows - 1) * slope + (rows - 1) * (rows - 2) / 2 * curvature


def _encoded(objective: Any, batch: Batch, half: bool) -> tuple[Vectors, Recorded]:
    with recording() as record:
        with in_half_precision(half):
            vectors, losses = objective.encode(batch)
        forward = len(record.live)
        total = [*losses.values(), *((vector * torch.zeros_like(vector)).sum() for vector in vectors)]
        torch.stack([loss.float() for loss in total]).sum().backward()
    return tuple(vector.detach() for vector in vectors), Recorded(record.live, record.moved, forward)
