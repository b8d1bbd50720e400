"""Batches of tensors with rows as their first dimension, sliced and moved together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

B = TypeVar("B", bound="Rows")


class HostProperty(cached_property[Any]):
    """A property of a batch whose value or shape depends on its numbers, such as the positions of its labels.

    `Rows.to` computes it before a batch leaves the CPU, and moves it too. Computed on a GPU, it would make the host
    wait until the GPU has done all earlier work.
    """


@dataclass(frozen=True)
class Rows:
    """A batch whose fields are tensors, other `Rows` or values of the batch; its length is that of the first field."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from `start` up to `stop`."""
        return replace(self, **{field.name: _slice(getattr(self, field.name), start, stop) for field in fields(self)})

    def to(self, device: torch.device) -> Self:
        """Return the batch on another device."""

        def moved(part: Tensor) -> Tensor:
            # Only a copy from pinned memory is asynchronous; pinning pinned memory does nothing.
            is_copied = device.type == "cuda" and part.device.type == "cpu"
            return (part.pin_memory() if is_copied else part).to(device, non_blocking=True)

        return self._with_all(moved)

    def pin_memory(self) -> Self:
        """Return the batch in pinned memory, from which copies to a GPU are asynchronous."""
        return self._with_all(Tensor.pin_memory)

    def _with_all(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with all tensors changed, and those of its host properties, which are computed if needed."""
        kind: Any = type(self)
        changed = replace(self, **{field.name: _change(getattr(self, field.name), change) for field in fields(self)})
        return known(changed, **{name: _change(getattr(self, name), change) for name in _host_properties(kind)})


def known(batch: B, **properties: Any) -> B:
    """Set host properties of a new batch whose values are known, and return it."""
    vars(batch).update(properties)
    return batch


def flat_positions(mask: Tensor) -> Tensor:
    """Return the indices [N] at which a flattened mask is true; on a GPU the host waits for their number."""
    return mask.flatten().nonzero()[:, 0]


def first_positions(counts_B: Tensor, length: int, total: int) -> Tensor:
    """Return the flat positions [N] of the first columns of rows of a length; `total` is the sum N of their counts."""
    rows = torch.arange(len(counts_B), device=counts_B.device)
    before_B = counts_B.cumsum(0) - counts_B  # the number of positions in earlier rows
    offsets_N = (rows * length - before_B).repeat_interleave(counts_B, output_size=total)
    return offsets_N + torch.arange(total, device=counts_B.device)


@cache
def _host_properties(kind: type[Rows]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if isinstance(getattr(kind, name), HostProperty))


def _slice(part: Any, start: int, stop: int) -> Any:
    if isinstance(part, Rows):
        return part.rows(start, stop)
    return part[start:stop] if isinstance(part, Tensor) else part


def _change(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, tuple):
        return tuple(_change(one, change) for one in part)
    if isinstance(part, Rows):
        return part._with_all(change)
    return change(part) if isinstance(part, Tensor) else part
