"""Take items some at a time: so many, or as many as fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(
    items: Iterable[T], *, size: Callable[[T], int], limit: int, number: int | None = None
) -> Iterator[list[T]]:
    """Consecutive items: `number` at most, whose sizes add up to `limit` at most, or one that is larger."""
    some: list[T] = []
    total = 0
    for item in items:
        total += (its := size(item))
        if some and (total > limit or len(some) == number):
            yield some
            some, total = [], its
        some.append(item)
    if some:
        yield some
