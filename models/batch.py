"""Batches of tensors with rows as their first dimension, sliced and moved together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


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
        return replace(self, **{field.name: _move(getattr(self, field.name), device) for field in fields(self)})

    def pin_memory(self) -> Self:
        """Return the batch in pinned memory, from which copies to a GPU are asynchronous."""
        return replace(self, **{field.name: _pin(getattr(self, field.name)) for field in fields(self)})


def _slice(part: Any, start: int, stop: int) -> Any:
    if isinstance(part, Rows):
        return part.rows(start, stop)
    return part[start:stop] if isinstance(part, Tensor) else part


def _pin(part: Any) -> Any:
    return part.pin_memory() if isinstance(part, Rows | Tensor) else part


def _move(part: Any, device: torch.device) -> Any:
    if isinstance(part, Rows):
        return part.to(device)
    return part.to(device, non_blocking=True) if isinstance(part, Tensor) else part
