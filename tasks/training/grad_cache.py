"""The gradients of an objective over a batch: at once, in chunks, or on several processes, always the same.

With chunks, vectors are computed without a graph, the gradients of the comparison at the vectors are kept, and each
chunk is encoded again with the same dropout to propagate them: GradCache (Gao et al. 2021). The first chunk of a
process keeps its graph and is not encoded again; an objective without vectors therefore encodes every chunk once.
Several processes share the chunks, gather the vectors, and sum their gradients. A local loss is the mean over the
complete batch: each chunk counts by its share of the terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from models.objective import Batch, Losses, Objective, Vectors, concatenate, num_terms
from storage.errors import UserError
from tasks.runtime import distributed
from tasks.runtime.device import choose_device
from tasks.training.seeds import mix_seeds

Span = tuple[int, int]


def gradients(objective: Any, batch: Batch, chunk: int | None, seed: tuple[int, int]) -> Losses:
    """Add the gradients of the summed losses over a batch to the parameters, and return the losses."""
    spans = split_into_chunks(len(batch), chunk)
    if len(spans) == 1:
        vectors, local = _encode(objective, batch, (*seed, 0))
        losses = {**local, **objective.compare(vectors, batch)}
        _sum(losses.values()).backward()
        return losses
    first, *others = distributed.shard_of_rank(spans)
    encoded = _encode(objective, batch.rows(*spans[first]), (*seed, first))
    losses, cached = _compare(objective, batch, spans, seed, encoded[0]) if encoded[0] else ({}, ())
    local_losses = _propagate(encoded, batch, spans[first], cached)
    for number in others:
        encoded = _encode(objective, batch.rows(*spans[number]), (*seed, number))
        for name, loss in _propagate(encoded, batch, spans[number], cached).items():
            local_losses[name] = local_losses[name] + loss
    distributed.sum_gradients(objective)
    for name, loss in distributed.sum_over_ranks(local_losses).items():
        losses[name] = losses.get(name, torch.zeros_like(loss)) + loss
    return losses


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


def _compare(
    objective: Any, batch: Batch, spans: Sequence[Span], seed: tuple[int, int], vectors: Vectors
) -> tuple[Losses, Vectors]:
    """Return the losses of the comparison, and its gradients at the vectors of the complete batch.

    `vectors` are those of the first chunk of this process; the others are encoded here without a graph.
    """
    chunks = [tuple(vector.detach() for vector in vectors)]
    with torch.no_grad():
        for number in distributed.shard_of_rank(spans)[1:]:
            chunks.append(_encode(objective, batch.rows(*spans[number]), (*seed, number))[0])
    rows = [
        spans[numbers[-1]][1] - spans[numbers[0]][0]
        for numbers in (distributed.shard_of_rank(spans, rank) for rank in range(distributed.size()))
    ]
    gathered = distributed.gather(concatenate(chunks), rows)
    torch.manual_seed(mix_seeds(*seed, len(spans)))  # the same for all processes, whichever chunks they had
    leaves = tuple(vector.detach().requires_grad_() for vector in gathered)
    losses = dict(objective.compare(leaves, batch))
    _sum(losses.values()).backward()
    distributed.divide_gradients(objective)
    return losses, tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)


def _propagate(encoded: tuple[Vectors, Losses], batch: Batch, span: Span, cached: Vectors) -> Losses:
    """Add a chunk's gradients to the parameters, and return its share of the local losses of the batch."""
    (vectors, local), part = encoded, batch.rows(*span)
    losses = {name: loss * (num_terms(part, name) / max(1, num_terms(batch, name))) for name, loss in local.items()}
    carried = [
        (vector * _part(gradient, span, len(batch))).sum() for vector, gradient in zip(vectors, cached, strict=True)
    ]
    _sum([*carried, *losses.values()]).backward()
    return {name: loss.detach() for name, loss in losses.items()}


def _sum(losses: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(losses)).sum()


def _part(grad: Tensor, span: Span, size: int) -> Tensor:
    """Return the gradients of a chunk's rows, each of which may have several vectors."""
    vectors = len(grad) // size
    return grad[span[0] * vectors : span[1] * vectors]


def _encode(objective: Objective, batch: Batch, seed: tuple[int, int, int]) -> tuple[Vectors, Losses]:
    torch.manual_seed(mix_seeds(*seed))
    device = choose_device()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type != "cpu"):
        return objective.encode(batch)


def gradient_norms(objective: nn.Module) -> dict[str, float]:
    """The gradient's norm in each of the objective's parts, where it has several: its encoder, its decoder, a head."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.partition(".")[0], []).append(parameter.grad)
    if len(parts) < 2:
        return {}
    return {f"gradient_norm_{part}": nn.utils.get_total_norm(gradients).item() for part, gradients in parts.items()}
