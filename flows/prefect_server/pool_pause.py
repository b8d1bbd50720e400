"""Which pools a `pretrieve down --drain` has paused, noted before it pauses them, so that somebody begins again.

STORE/.prefect/services/paused holds their names, and is locked as long as that command waits. However that ends,
the pause is undone: by the command itself, else by the next `up`.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from flows.prefect_server.api import Api
from flows.prefect_server.services import Place
from storage.errors import UserError

POOL = "cpu"  # the gpu pool goes on: what is under way on the cpu pool waits for stages there


@contextmanager
def paused(place: Place, api: Api) -> Iterator[None]:
    """Begin nothing new in this block; a `UserError` where another `down --drain` waits."""
    with _note(place).open("a+") as note:
        if not _locked(note):
            raise UserError("another `pretrieve down --drain` waits already; end it, or wait for it")
        try:
            if not api.paused(POOL):  # an operator's own pause stays
                note.write(f"{POOL}\n")
                note.flush()
                api.pause(POOL, True)
            yield
        finally:
            _begin_again(note, api)


def unpause(place: Place, api: Api) -> None:
    """Undo what a `down --drain` that was interrupted has left paused, and say so; one that still waits is let be."""
    with _note(place).open("a+") as note:
        if not _locked(note):
            print(f"a `pretrieve down --drain` is at work: the pool {POOL} begins nothing new")
        elif _begin_again(note, api):
            print(f"the pool {POOL} was left paused by a `pretrieve down --drain`: it begins runs again")


def _begin_again(note: IO[str], api: Api) -> bool:
    """Whether there was something to undo."""
    note.seek(0)
    pools = note.read().split()
    for pool in pools:
        api.pause(pool, False)
    note.truncate(0)
    return bool(pools)


def _note(place: Place) -> Path:
    place.folder.mkdir(parents=True, exist_ok=True)
    return place.folder / "paused"


def _locked(note: IO[str]) -> bool:
    """Whether nobody else has the note, which is ours from here on."""
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
