"""Batches: parts that have their rows first, cut and moved together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """A dataclass of tensors, of other `Rows`, and of what belongs to no row; its length is its first part's."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self, start: int, stop: int) -> Self:
        """Some of the rows."""
        return replace(self, **{each.name: _cut(getattr(self, each.name), start, stop) for each in fields(self)})

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        return replace(self, **{each.name: _moved(getattr(self, each.name), device) for each in fields(self)})


def _cut(part: Any, start: int, stop: int) -> Any:
    if isinstance(part, Rows):
        return part.rows(start, stop)
    return part[start:stop] if isinstance(part, Tensor) else part


def _moved(part: Any, device: torch.device) -> Any:
    if isinstance(part, Rows):
        return part.to(device)
    return part.to(device, non_blocking=True) if isinstance(part, Tensor) else part
