"""The right to build an artifact, which one process has at a time, and the locks of one host.

`storage.store.store_locks` says which kind of lock a store has. `storage.store.redis_lease` has the locks of several
hosts that share a store.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Protocol

LOCKS = "PRETRIEVE_LOCKS"
"""The environment variable with the address of the Redis through which hosts share a store."""

MOMENT = 0.05  # seconds; `FileLocks.is_held` has a lock for much less

Waiting = Callable[[], None]
"""Called once when another process holds the lock."""
Check = Callable[[], None]
"""Returns while the lock is held. Raises `LeaseLost` otherwise."""


class LeaseLost(BaseException):
    """Another process may build the same artifact now.

    It is no `Exception`, so that no `except Exception` between the build and the command line handles it.
    """


class Locks(Protocol):
    """Locks by the name of what is built."""

    def hold(self, name: str, waiting: Waiting) -> AbstractContextManager[Check]:
        """Hold the lock during a block. `waiting` is called once if another process has it."""

    def is_held(self, name: str) -> bool:
        """Return whether a process has the lock."""


class FileLocks:
    """The kernel's locks on files in a folder, for the processes of one host. A lock ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, name: str, waiting: Waiting) -> Iterator[Check]:
        """Hold the lock during a block. `waiting` is called once if another process has it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / name).open("w", encoding="utf-8") as file:
            if not self._taken(file):
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda: None

    def _taken(self, file: IO[str]) -> bool:
        """Take the lock, and return whether that was possible at once or after the moment of an `is_held`."""
        for seconds in (MOMENT, 0.0):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(seconds)
        return False

    def is_held(self, name: str) -> bool:
        """Return whether a process has the lock."""
        try:
            # A network file system locks only files that are open for writing.
            file = (self._folder / name).open("r+", encoding="utf-8")
        except FileNotFoundError:
            return False
        except OSError:  # the store is read-only
            file = (self._folder / name).open(encoding="utf-8")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not meet each other
            except BlockingIOError:
                return True
        return False
