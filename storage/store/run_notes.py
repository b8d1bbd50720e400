"""Run notes: which artifacts a run reads and builds, so that garbage collection leaves them alone.

    STORE/.runs/<id>.json    command, title, the references of its artifacts, host, process, start

A run writes its note before it looks which artifacts the store has, and holds the kernel's lock on the note's file
until its process ends. It deletes the note when a report or a version of a corpus needs what it built. The note of a
run that was stopped, killed or failed stays, and keeps what the next attempt needs.

Why no interleaving loses an artifact: notes are written, and artifacts are deleted, under one lock of the store
(`changing_notes`). Garbage collection reads the notes again and renames an artifact while it holds that lock. So either
it sees the note and keeps the artifact, or it has renamed the artifact before the note is there; the run then looks,
sees that the artifact is missing, and builds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from storage.errors import UserError
from storage.files import flush
from storage.store.marker import unwritable
from storage.store.store import Store

FOLDER = ".runs"
REFERENCE = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9]+")


class State(StrEnum):
    """What is known of the process that wrote a note."""

    RUNNING = "running"
    UNKNOWN = "on another host"
    """It may run: the locks of other hosts cannot be seen everywhere."""
    ENDED = "unfinished"


@dataclass(frozen=True)
class RunNote:
    """A note as others read it."""

    path: Path
    words: str
    """Command, title, host and start, for people."""
    references: frozenset[str]
    """The artifacts that the run reads and builds, as `<stage>/<key>`."""
    state: State


class NotedRun:
    """A run with its note; without one where the store is read-only, since nothing can be deleted through it."""

    def __init__(self, store: Store, command: str, title: str) -> None:
        self._store, self._file = store, None if store.is_read_only else _new_path(store)
        self._about = {
            "format": 1, "command": command, "title": title, "host": socket.gethostname(), "boot": _boot(),
            "pid": os.getpid(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._references: set[str] = set()
        self._held: IO[str] | None = None

    def uses(self, references: Collection[str]) -> None:
        """Have the note name these artifacts too, before the run looks whether they are there."""
        if self._file is None or self._references >= set(references):
            return
        with changing_notes(self._store):
            self._references |= set(references)
            held, self._held = self._held, _write(self._file, self._about | {"references": sorted(self._references)})
            if held is None:
                self._replace_earlier()
            else:
                held.close()

    def _replace_earlier(self) -> None:
        """Delete the notes of runs that have ended and of which this one needs all artifacts, and unfinished files."""
        for temporary in (self._store.root / FOLDER).glob(".*.tmp"):  # of killed processes: we hold the lock
            temporary.unlink(missing_ok=True)
        for note in read_notes(self._store.root):
            if note.state is State.ENDED and note.references <= self._references:
                note.path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete the note: what the run built is needed by a report or a version, or by nothing any more."""
        if self._file:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Free the lock on the note. A note that is still there is that of an unfinished run from now on."""
        if self._held:
            self._held.close()


@contextlib.contextmanager
def noted(store: Store, command: str, title: str, references: Collection[str] = ()) -> Iterator[NotedRun]:
    """A run whose artifacts garbage collection leaves alone during the block, and after it unless it calls `finish`."""
    run = NotedRun(store, command, title)
    try:
        run.uses(references)
        yield run
    finally:
        run.close()


def changing_notes(store: Store) -> AbstractContextManager[None]:
    """Hold the lock under which notes are written and artifacts are deleted; it is held for moments only."""
    return store.lock("runs", "notes", lambda: None)


def read_notes(root: Path) -> list[RunNote]:
    """Return the notes of a store, the oldest first. Raises UserError for one that cannot be read."""
    found = []
    folder = root / FOLDER
    # A folder that may not be read is an error: what is in it may be needed.
    for path in sorted(path for path in folder.iterdir() if path.suffix == ".json") if folder.exists() else []:
        with contextlib.suppress(FileNotFoundError):  # its run has just finished
            found.append(_read(path))
    return found


def _read(path: Path) -> RunNote:
    with path.open("rb") as file:
        state = _state_by_lock(file)
        content = file.read()
    try:
        value: Any = json.loads(content)
        references = frozenset(value["references"])
        if not all(REFERENCE.fullmatch(reference) for reference in references):
            raise ValueError
        words = f"{value['command']} {value['title']} on {value['host']}, begun {value['started']}"
        # The same boot is the same kernel, whose locks we see; the same host with another boot was restarted since.
        here = value["boot"] == _boot() != "" or value["host"] == socket.gethostname()
        if state is State.UNKNOWN and here:
            state = State.ENDED
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{path}: expected the note of a run, with the artifacts that it needs; delete it if no run is under way "
            "and none is to be resumed"
        ) from None
    return RunNote(path, words, references, state)


def _state_by_lock(file: IO[bytes]) -> State:
    """Return RUNNING where a process of this host holds the lock on a note, else UNKNOWN: others may not be seen."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return State.RUNNING
    return State.UNKNOWN


def _new_path(store: Store) -> Path:
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return store.root / FOLDER / f"{began}-{os.getpid()}-{secrets.token_hex(4)}.json"


def _write(path: Path, value: dict[str, Any]) -> IO[str]:
    """Write a note and return its open file, on which the lock is held since before the note had its name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        file = temporary.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)
        flush(path.parent)
    except OSError as error:
        raise unwritable(path.parent.parent, error.strerror) from None
    return file


def _boot() -> str:
    """What the kernel calls the time since it was started: equal in all containers of a host; empty where unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
