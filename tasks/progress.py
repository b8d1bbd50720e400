"""Long work shows how far it is, how fast it goes and the time left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 10.0  # where the output is a file or a log, which keeps every line


def progress(items: Iterable[T], *, what: str, unit: str, total: int | None = None, done: int = 0) -> Iterator[T]:
    """Pass `items` on while a bar on standard error counts them, `done` of the `total` being there already."""
    with bar(what=what, unit=unit, total=total, done=done) as counter:
        for item in items:
            yield item
            counter.update(1)


def bar(*, what: str, unit: str, total: int | None = None, done: int = 0) -> tqdm[None]:
    """A bar for work that counts by itself: `update(n)`, `set_postfix(loss=...)`."""
    terminal = sys.stderr.isatty()
    return tqdm(
        desc=f"  {what}", unit=f" {unit}", total=total, initial=done, leave=False, dynamic_ncols=terminal,
        mininterval=0.2 if terminal else SECONDS_BETWEEN_LINES, file=sys.stderr, smoothing=0.1,
    )  # fmt: skip
