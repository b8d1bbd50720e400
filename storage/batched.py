"""Group consecutive items by their number and their total size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

T = TypeVar("T")


def portions(
    items: Iterable[T], *, size: Callable[[T], int], limit: int, number: int | None = None
) -> Iterator[list[T]]:
    """Yield groups of at most `number` consecutive items of at most `limit` in total. A larger item is a group."""
    group: list[T] = []
    total = 0
    for item in items:
        total += (item_size := size(item))
        if group and (total > limit or len(group) == number):
            yield group
            group, total = [], item_size
        group.append(item)
    if group:
        yield group


def arrow_blocks(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, number: int) -> Iterator[pa.Table]:
    """Yield rows as Arrow tables of at most `number` rows."""
    for block in portions(rows, size=lambda _: 1, limit=number):
        yield pa.Table.from_pylist(block, schema=schema)
