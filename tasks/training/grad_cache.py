"""The gradients of an objective over a batch: at once, in chunks, or on several processes.

They are the same but for dropout, which is drawn by chunk, and for how sums are rounded.

With chunks, vectors are computed without a graph, the gradients of the comparison at the vectors are kept, and each
chunk is encoded again with the same dropout to propagate them: GradCache (Gao et al. 2021). The first chunk of a
process keeps its graph and is not encoded again; an objective without vectors therefore encodes every chunk once.
Several processes share the chunks, gather the vectors, and sum their gradients. A local loss is the mean over the
complete batch: each chunk counts by its share of the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from models.objective import Batch, Losses, Objective, Vectors, concatenate, num_terms
from storage.errors import UserError
from tasks.runtime import distributed
from tasks.runtime.device import Precision, autocast, choose_device
from tasks.training.seeds import mix_seeds

Span = tuple[int, int]


def gradients(
    objective: Any, batch: Batch, chunk: int | None, seed: tuple[int, int], precision: Precision | None = None,
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> Losses:  # fmt: skip
    """Add the gradients of the summed losses over a batch to the parameters, and return the losses.

    Chunks are moved to the device one by one to be encoded, so that terms are counted on the CPU. `precision` is
    that of the encoder's matrix products. `scale` is applied to the sum of the losses before each backward pass.
    """
    spans = split_into_chunks(len(batch), chunk)
    step = _Step(objective, batch, spans, seed, precision, scale)
    if len(spans) == 1:
        moved = batch.to(choose_device())
        vectors, local = step.encode(0, moved)
        losses = {**local, **objective.compare(vectors, moved)}
        scale(_sum(losses.values())).backward()
        return losses
    first, *others = distributed.shard_of_rank(spans)
    encoded = step.encode(first)
    losses, cached = step.compare(encoded[0]) if encoded[0] else ({}, ())
    local_losses = step.propagate(first, encoded, cached)
    for number in others:
        for name, loss in step.propagate(number, step.encode(number), cached).items():
            local_losses[name] = local_losses[name] + loss
    distributed.sum_gradients(objective)
    for name, loss in distributed.sum_over_ranks(local_losses).items():
        losses[name] = losses.get(name, torch.zeros_like(loss)) + loss
    return losses


@dataclass(frozen=True)
class _Step:
    """The chunks of a step; each is encoded with its own seed."""

    objective: Any
    batch: Batch
    spans: Sequence[Span]
    seed: tuple[int, int]
    precision: Precision | None
    scale: Callable[[Tensor], Tensor]

    def encode(self, number: int, chunk: Batch | None = None) -> tuple[Vectors, Losses]:
        """Return the vectors and local losses of a chunk, which is moved to the device unless it is given."""
        torch.manual_seed(mix_seeds(*self.seed, number))
        device = choose_device()
        objective: Objective = self.objective
        if chunk is None:
            chunk = self.batch.rows(*self.spans[number]).to(device)
        with autocast(device, self.precision):
            return objective.encode(chunk)

    def compare(self, vectors: Vectors) -> tuple[Losses, Vectors]:
        """Return the losses of the comparison, and its gradients at the vectors of the complete batch.

        `vectors` are those of the first chunk of this process; the others are encoded here without a graph.
        """
        chunks = [tuple(vector.detach() for vector in vectors)]
        with torch.no_grad():
            chunks += [self.encode(number)[0] for number in distributed.shard_of_rank(self.spans)[1:]]
        rows = [
            self.spans[numbers[-1]][1] - self.spans[numbers[0]][0]
            for numbers in (distributed.shard_of_rank(self.spans, rank) for rank in range(distributed.size()))
        ]
        gathered = distributed.gather(concatenate(chunks), rows)
        torch.manual_seed(mix_seeds(*self.seed, len(self.spans)))  # the same for all processes
        leaves = tuple(vector.detach().requires_grad_() for vector in gathered)
        losses = dict(self.objective.compare(leaves, self.batch.to(choose_device())))
        self.scale(_sum(losses.values())).backward()
        distributed.divide_gradients(self.objective)
        return losses, tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)

    def propagate(self, number: int, encoded: tuple[Vectors, Losses], cached: Vectors) -> Losses:
        """Add a chunk's gradients to the parameters, and return its share of the local losses of the batch."""
        (vectors, local), span = encoded, self.spans[number]
        part, size = self.batch.rows(*span), len(self.batch)
        losses = {
            name: loss * (num_terms(part, name) / max(1, num_terms(self.batch, name))) for name, loss in local.items()
        }
        carried = [
            (vector * _part(gradient, span, size)).sum() for vector, gradient in zip(vectors, cached, strict=True)
        ]
        scaled = [*carried, *(self.scale(loss) for loss in losses.values())]
        _sum(scaled).backward()
        return {name: loss.detach() for name, loss in losses.items()}


def split_into_chunks(size: int, chunk: int | None) -> list[Span]:
    """Return a batch's chunks of at most `chunk` rows; at least one for each process."""
    chunk = chunk or size
    if -(-size // chunk) >= distributed.size():
        return [(start, min(size, start + chunk)) for start in range(0, size, chunk)]
    if size < distributed.size():
        raise UserError(
            f"execution.processes: a batch of {size} rows cannot be shared by {distributed.size()} processes; "
            f"expected at most {size}"
        )
    bounds = [size * number // distributed.size() for number in range(distributed.size() + 1)]
    return list(pairwise(bounds))


def _sum(losses: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(losses)).sum()


def _part(grad: Tensor, span: Span, size: int) -> Tensor:
    """Return the gradients of a chunk's rows; a row may have several vectors."""
    vectors = len(grad) // size
    return grad[span[0] * vectors : span[1] * vectors]
