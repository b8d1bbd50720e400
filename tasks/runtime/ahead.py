"""What is needed next, built in a thread while the caller works with what came before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


@contextlib.contextmanager
def built_ahead(build: Callable[[K], T], keys: Iterable[K]) -> Iterator[Iterator[T]]:
    """Give what is built of each key, in their order; one is built ahead. An error is raised where it is due."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:

        def built() -> Iterator[T]:
            following: Future[T] | None = None
            for key in keys:
                current, following = following, thread.submit(build, key)
                if current is not None:
                    yield current.result()
            if following is not None:
                yield following.result()

        yield built()
