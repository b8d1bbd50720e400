"""The processes that train one model together: which of them this one is, and what they tell each other.

Where only one process runs, it has rank 0 of 1, and nothing is communicated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

ALONE_IN_A_STEP = timedelta(hours=2)  # how long processes wait for one that probes or writes a checkpoint
ELEMENTS_PER_BUCKET = 2**25  # gradients that are added up at a time: 128 MiB


class ReplicasDiffer(Exception):
    """The processes of a training have different weights."""


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int | None:
    """Return this process's number on its host; None where it was not started with others."""
    return int(os.environ["LOCAL_RANK"]) if dist.is_initialized() else None


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is set in any process; all processes get the same answers."""
    if size() == 1:
        return flags
    answers = torch.tensor(flags, dtype=torch.int32)  # on the CPU, over gloo: no process waits for its GPU
    dist.all_reduce(answers, op=dist.ReduceOp.MAX)
    return tuple(bool(answer) for answer in answers.tolist())


def barrier() -> None:
    """Wait until every process has reached this point."""
    if size() > 1:
        dist.barrier()


def check_replicas_equal(module: nn.Module) -> None:
    """Raise ReplicasDiffer if the sums of a parameter's bits differ between processes."""
    if size() == 1:
        return
    names, parameters = zip(*module.named_parameters(), strict=True)
    sums = torch.stack([parameter.detach().contiguous().view(torch.int32).sum() for parameter in parameters])
    largest, smallest = sums.clone(), sums
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    if different := (largest != smallest).nonzero().flatten().tolist():
        raise ReplicasDiffer(
            f"{names[different[0]]} and {len(different) - 1} more weights are not the same in all {size()} processes; "
            "run again to resume from the last checkpoint, with execution.processes=1 if it comes back"
        )


def shard_of_rank(spans: Sequence[object], to: int | None = None) -> range:
    """Return the numbers of a process's spans (this one's by default): neighbours, in equal shares up to one."""
    number = rank() if to is None else to
    return range(len(spans) * number // size(), len(spans) * (number + 1) // size())


def gather(parts: tuple[Tensor, ...], rows: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the parts of all processes, concatenated; `rows` has each process's number of examples.

    An example may have several rows in a part. Parts of other processes have no gradient.
    """
    if size() == 1:
        return parts
    return tuple(_gather(part, rows) for part in parts)


def _gather(part: Tensor, rows: Sequence[int]) -> Tensor:
    """Pad shorter parts, since collectives need equal shapes, and cut them again."""
    rows_per_example = len(part) // rows[rank()]
    longest = part.new_zeros(max(rows) * rows_per_example, *part.shape[1:])
    longest[: len(part)] = part
    parts = [torch.empty_like(longest) for _ in rows]
    dist.all_gather(parts, longest)
    return torch.cat([one[: count * rows_per_example] for one, count in zip(parts, rows, strict=True)])


def sum_over_ranks(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sums over all processes of numbers that each has by the same names."""
    if size() == 1 or not values:
        return values
    stacked = torch.stack([value.float() for value in values.values()])
    dist.all_reduce(stacked)
    return dict(zip(values, stacked.unbind(), strict=True))


def sum_integer(value: int) -> int:
    """Return the sum over all processes of a number that each has."""
    if size() == 1:
        return value
    total = torch.tensor(value, dtype=torch.int64)  # as in `any_rank`
    dist.all_reduce(total)
    return int(total)


def integer_of_first(value: int) -> int:
    """Return the number that the process of rank 0 has."""
    if size() == 1:
        return value
    first = torch.tensor(value, dtype=torch.int64)  # as in `any_rank`
    dist.broadcast(first, src=0)
    return int(first)


def sum_gradients(module: nn.Module) -> None:
    """Sum every parameter's gradient over all processes. A gradient that no process has stays absent."""
    if size() == 1:
        return
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    has_gradient = [parameter.grad is not None for parameter in parameters]
    there = torch.tensor(has_gradient, dtype=torch.int32)  # as in `any_rank`
    dist.all_reduce(there, op=dist.ReduceOp.MAX)
    used = [parameter for parameter, some in zip(parameters, there.tolist(), strict=True) if some]
    for parameter in used:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    for bucket in _buckets(used):
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket if parameter.grad is not None])
        dist.all_reduce(flat)
        for parameter, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
            parameter.grad = part.view_as(parameter)


def divide_gradients(module: nn.Module) -> None:
    """Divide gradients that every process has alike, so that adding them up gives them once."""
    if size() > 1:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= size()


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    filled = ELEMENTS_PER_BUCKET
    for parameter in parameters:
        if filled + parameter.numel() > ELEMENTS_PER_BUCKET or parameter.dtype != buckets[-1][0].dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.numel()
    return buckets
