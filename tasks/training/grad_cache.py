"""The gradients of an objective over a batch: whole, in chunks, or on several processes, always the same.

With chunks, vectors are computed without a graph, the comparison's gradients at the vectors are kept, and each chunk
is passed again under the same dropout to carry them on: GradCache (Gao et al. 2021). Several processes deal the
chunks among them, gather the vectors, and add up what each carried on. A local loss is the mean over the whole batch:
each chunk counts by its share of the terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from models.objective import Batch, Losses, Objective, Vectors, concatenate, num_terms
from storage.errors import UserError
from tasks.runtime import distributed
from tasks.runtime.device import choose_device

Span = tuple[int, int]


def gradients(objective: Any, batch: Batch, chunk: int | None, seed: tuple[int, int]) -> Losses:
    """Add the gradients of the summed losses over a batch to the parameters, and return the losses."""
    spans = split_into_chunks(len(batch), chunk)
    if len(spans) == 1:
        vectors, local = _encode(objective, batch, (*seed, 0))
        losses = {**local, **objective.compare(vectors, batch)}
        torch.stack(list(losses.values())).sum().backward()
        return losses
    losses, cached = _compared(objective, batch, spans, seed)
    found: Losses = {}
    for number in distributed.shard_of_rank(spans):
        part = batch.rows(*spans[number])
        vectors, local = _encode(objective, part, (*seed, number))
        share = {name: num_terms(part, name) / max(1, num_terms(batch, name)) for name in local}
        carried = [
            (vector * _part(grad, spans[number], len(batch))).sum()
            for vector, grad in zip(vectors, cached, strict=True)
        ]
        torch.stack([*carried, *(loss * share[name] for name, loss in local.items())]).sum().backward()
        for name, loss in local.items():
            found[name] = found.get(name, torch.zeros_like(loss)) + loss.detach() * share[name]
    distributed.sum_gradients(objective)
    for name, loss in distributed.sum_over_ranks(found).items():
        losses[name] = losses.get(name, torch.zeros_like(loss)) + loss
    return losses


def split_into_chunks(size: int, chunk: int | None) -> list[Span]:
    """A batch's chunks: of so many rows, or, where these are fewer than there are processes, one for each of them."""
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


def _compared(objective: Any, batch: Batch, spans: Sequence[Span], seed: tuple[int, int]) -> tuple[Losses, Vectors]:
    """The losses of the comparison, and its gradients at the vectors of the whole batch."""
    chunks: list[Vectors] = []
    with torch.no_grad():
        for number in distributed.shard_of_rank(spans):
            chunks.append(_encode(objective, batch.rows(*spans[number]), (*seed, number))[0])
            if not chunks[0]:
                return {}, ()
    rows = [
        spans[numbers[-1]][1] - spans[numbers[0]][0]
        for numbers in (distributed.shard_of_rank(spans, each) for each in range(distributed.size()))
    ]
    vectors = distributed.gather(concatenate(chunks), rows)
    torch.manual_seed(mix_seeds((*seed, len(spans))))  # the same for all processes, whichever chunks they had
    leaves = tuple(vector.detach().requires_grad_() for vector in vectors)
    losses = dict(objective.compare(leaves, batch))
    torch.stack(list(losses.values())).sum().backward()
    distributed.divide_gradients(objective)
    return losses, tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)


def _part(grad: Tensor, span: Span, size: int) -> Tensor:
    """The gradients that belong to some of a batch's rows, each of which may have several vectors."""
    vectors = len(grad) // size
    return grad[span[0] * vectors : span[1] * vectors]


def _encode(objective: Objective, batch: Batch, seed: tuple[int, int, int]) -> tuple[Vectors, Losses]:
    torch.manual_seed(mix_seeds(seed))
    device = choose_device()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        return objective.encode(batch)


def mix_seeds(seed: tuple[int, ...]) -> int:
    """One seed of several numbers, different for different numbers."""
    value = 0
    for number in seed:
        value = (value * 1_000_003 + number + 1) % (2**63 - 1)
    return value


def gradient_norms(objective: nn.Module) -> dict[str, float]:
    """The gradient's norm in each of the objective's parts, where it has several: its encoder, its decoder, a head."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.partition(".")[0], []).append(parameter.grad)
    if len(parts) < 2:
        return {}
    return {f"gradient_norm_{part}": nn.utils.get_total_norm(found).item() for part, found in parts.items()}
