"""Who may build an artifact: one process at a time, on one host or on all that share a store.

On one host the kernel's locks on files do; it frees one when its holder dies. Where hosts share a store, they hold
leases of a Redis that all know by PRETRIEVE_LOCKS (`storage.store.redis_lease`). A store that was once used so
remembers it, with the name that the leases give it, in `.locks/shared`, and is refused to a process that would not ask
there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from storage.errors import UserError
from storage.files import flush

LOCKS = "PRETRIEVE_LOCKS"
SHARED = "shared"

Waiting = Callable[[], None]
Check = Callable[[], None]
"""Returns where the lock is still held; else raises `LeaseLost`."""


class LeaseLost(BaseException):
    """Another may build what this process builds. No `Exception`: nobody on the way may think it mended."""


class Locks(Protocol):
    """The right to build, by the name of what is built."""

    def hold(self, name: str, waiting: Waiting) -> AbstractContextManager[Check]:
        """Hold the lock for a block; `waiting` is called once if another has it."""

    def is_held(self, name: str) -> bool:
        """Whether a process has the lock."""


class Flocks:
    """Locks on files of a folder, for the processes of one host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def hold(self, name: str, waiting: Waiting) -> Iterator[Check]:
        """Hold the lock for a block; `waiting` is called once if another has it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield lambda: None

    def is_held(self, name: str) -> bool:
        """Whether a process has the lock."""
        try:
            file = (self._folder / name).open("r+")  # a file system of the network locks only what may be written
        except FileNotFoundError:
            return False
        except OSError:  # a store that may only be read
            file = (self._folder / name).open()
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def locks_of(folder: Path, seconds: float) -> Locks:
    """The locks of the store whose `.locks` folder this is; `seconds` is how long a lease lasts that nobody renews.

    Raises `UserError` where the store is shared and PRETRIEVE_LOCKS does not say through which Redis. A store is marked
    as shared when that Redis has answered: the mark is for good, and an address may be wrong.
    """
    address, shared = os.environ.get(LOCKS), folder / SHARED
    if address:
        from storage.store.redis_lease import Leases, require_answer

        if not shared.exists():
            require_answer(address, seconds)
        return Leases(address, f"pretrieve:{_name_of_shared(shared)}:", seconds)
    if shared.exists():
        raise UserError(
            f"{shared}: hosts share this store, and agree through Redis who builds what; "
            f"expected its address in {LOCKS} (redis://:PASSWORD@HOST:PORT/DB), as it is on the others"
        )
    return Flocks(folder)


def _name_of_shared(path: Path) -> str:
    """The name by which all hosts know a store, wherever each has it; the first gives it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        proposed = path.with_name(f".{SHARED}.{uuid.uuid4().hex}.tmp")
        try:
            proposed.write_text(f"{uuid.uuid4().hex}\n")
            flush(proposed)
            with contextlib.suppress(FileExistsError):  # another host was first
                os.link(proposed, path)
        finally:
            proposed.unlink(missing_ok=True)
        flush(path.parent)
    return path.read_text().strip()
