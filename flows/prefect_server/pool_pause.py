"""The pools that `pretrieve down --drain` pauses, noted before it pauses them, so that they are resumed in any case.

STORE/.prefect/services/paused holds their names, and is locked while that command waits. The command resumes them when
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

POOL = "cpu"  # the gpu pool is not paused: active runs of the cpu pool wait for stages there


@contextmanager
def paused(paths: ServicePaths, api: Api) -> Iterator[None]:
    """Start no new run in this block. Raises `UserError` where another `down --drain` waits."""
    with _note(paths).open("a+") as note:
        if not _locked(note):
            raise UserError("another `pretrieve down --drain` waits already; end it, or wait for it")
        try:
            if not api.paused(POOL):  # an operator's own pause stays
                note.write(f"{POOL}\n")
                note.flush()
                api.pause(POOL, True)
            yield
        finally:
            _resume(note, api)


def unpause(paths: ServicePaths, api: Api) -> None:
    """Resume a pool that an interrupted `down --drain` has left paused, and print so; not while that command waits."""
    with _note(paths).open("a+") as note:
        if not _locked(note):
            print(f"a `pretrieve down --drain` is active: the pool {POOL} starts no new run")
        elif _resume(note, api):
            print(f"the pool {POOL} was left paused by a `pretrieve down --drain`: it is resumed")


def _resume(note: IO[str], api: Api) -> bool:
    """Resume the noted pools; return whether there were any."""
    note.seek(0)
    pools = note.read().split()
    for pool in pools:
        api.pause(pool, False)
    note.truncate(0)
    return bool(pools)


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
