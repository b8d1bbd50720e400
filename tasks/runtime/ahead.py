"""The next items of an iterator, made in a thread while the caller works with the one before."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")
END = object()


@contextlib.contextmanager
def made_ahead(items: Iterator[T], number: int = 1) -> Iterator[Iterator[T]]:
    """Give the items in their order; up to `number` are made ahead. An error is raised in place of its item."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:

        def made() -> Iterator[T]:
            waiting = deque(thread.submit(next, items, END) for _ in range(number + 1))
            while (item := waiting.popleft().result()) is not END:
                yield cast(T, item)
                waiting.append(thread.submit(next, items, END))

        try:
            yield made()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
