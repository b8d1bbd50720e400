"""Modules that have shapes and nothing else, to see before hours of work whether they fit together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

RANDOM_INIT = ("normal_", "uniform_")


@contextlib.contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules in this block without memory, and without drawing random numbers for them.

    Drawing for what has no memory changes nothing, but PyTorch imports its compiler for it, which takes as long as
    reading a recipe and working out all of its keys.
    """
    with torch.device("meta"), _SkipRandomInit():
        yield


class _SkipRandomInit(TorchFunctionMode):
    """Leaves out what would fill a tensor with random numbers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        given = kwargs or {}
        if getattr(func, "__name__", "") in RANDOM_INIT:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
