"""What `pretrieve down --drain` pauses, noted before it pauses it, so that it is resumed in any case.

STORE/.prefect/services/paused holds the names, and is locked while that command waits. The command resumes them when
it ends; where it is killed, the next `up` does.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from flows.prefect_server.api import Api
from flows.prefect_server.services import ServicePaths
from storage.errors import UserError

PAUSED = ("cpu", "gpu/queues/evaluations")
"""The pool and the queue of runs. The gpu pool's default queue is not paused: active runs wait for stages there."""


@contextmanager
def paused(paths: ServicePaths, api: Api) -> Iterator[None]:
    """Start no new run in this block. Raises `UserError` where another `down --drain` waits."""
    with _note(paths).open("a+", encoding="utf-8") as note:
        if not _locked(note):
            raise UserError("another `pretrieve down --drain` waits already; end it, or wait for it")
        try:
            for queue in PAUSED:
                if not api.paused(queue):  # an operator's own pause stays
                    note.write(f"{queue}\n")
                    note.flush()
                    api.pause(queue, True)
            yield
        finally:
            _resume(note, api)


def unpause(paths: ServicePaths, api: Api) -> None:
    """Resume what an interrupted `down --drain` has left paused, and print so; not while that command waits."""
    with _note(paths).open("a+", encoding="utf-8") as note:
        if not _locked(note):
            print("a `pretrieve down --drain` is active: no new run starts")
        elif _resume(note, api):
            print("runs were left paused by a `pretrieve down --drain`: new ones start again")


def _resume(note: IO[str], api: Api) -> bool:
    """Resume the noted pool and queue; return whether there were any."""
    note.seek(0)
    queues = note.read().split()
    for queue in queues:
        api.pause(queue, False)
    note.truncate(0)
    return bool(queues)


def _note(paths: ServicePaths) -> Path:
    paths.folder.mkdir(parents=True, exist_ok=True)
    return paths.folder / "paused"


def _locked(note: IO[str]) -> bool:
    """Lock the note; return False where another process holds the lock."""
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
