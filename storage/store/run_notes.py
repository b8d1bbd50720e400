"""Run notes: the artifacts that a run reads and builds, so that garbage collection keeps them.

    STORE/.runs/<id>.json    command, title, the references of its artifacts, host, process, start

A run writes its note before it looks up artifacts in the store. It holds the kernel's lock on the note's file until its
process ends. It deletes the note when a report or a version of a corpus needs what it built. The note of a run that was
interrupted or failed stays, and keeps what the next attempt needs.

No interleaving loses an artifact, since notes are written and artifacts are deleted under one lock of the store
(`changing_notes`). Garbage collection reads the notes again and renames an artifact while it holds that lock. Either it
sees the note and keeps the artifact, or it renames the artifact before the note exists: then the run finds the artifact
missing and builds it.
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
from storage.store import begun_runs
from storage.store.marker import unwritable
from storage.store.store import Store

FOLDER = ".runs"
REFERENCE = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9]+")


class State(StrEnum):
    """The state of the process that wrote a note."""

    RUNNING = "running"
    UNKNOWN = "on another host"
    """It may be running: locks of other hosts are not visible on every file system."""
    ENDED = "unfinished"


@dataclass(frozen=True)
class RunNote:
    """A note that was read from the store."""

    path: Path
    words: str
    """Command, title, host and start, for messages."""
    references: frozenset[str]
    """The artifacts that the run reads and builds, as `<stage>/<key>`."""
    state: State


class NotedRun:
    """A run and its note. There is no note in a read-only store, from which nothing can be deleted."""

    def __init__(self, store: Store, command: str, title: str) -> None:
        self.title = title
        self._store, self._file = store, None if store.is_read_only else _new_path(store)
        self._about = {
            "format": 1, "command": command, "title": title, "host": socket.gethostname(), "boot": _boot(),
            "pid": os.getpid(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._references: set[str] = set()
        self._held: IO[str] | None = None

    def uses(self, references: Collection[str]) -> None:
        """Add artifacts to the note, before the run looks them up in the store."""
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
        """Delete temporary files, and the notes of ended runs all of whose artifacts this run uses."""
        for temporary in (self._store.root / FOLDER).glob(".*.tmp"):  # of killed processes: this one has the lock
            temporary.unlink(missing_ok=True)
        for note in read_notes(self._store.root):
            if note.state is State.ENDED and note.references <= self._references:
                note.path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Delete the note: a report or a version needs what the run built, or nothing does any more."""
        if self._file:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock on the note. A note that still exists is that of an unfinished run from now on."""
        if self._held:
            self._held.close()


@contextlib.contextmanager
def noted(store: Store, command: str, title: str, references: Collection[str] = ()) -> Iterator[NotedRun]:
    """Yield a run whose artifacts garbage collection keeps during the block, and afterwards unless it is finished."""
    run = NotedRun(store, command, title)
    begun_runs.begin()
    try:
        run.uses(references)
        yield run
    finally:
        run.close()


def changing_notes(store: Store) -> AbstractContextManager[None]:
    """Hold the lock under which notes are written and artifacts are deleted, for moments only."""
    return store.lock("runs", "notes", lambda: None)


def read_notes(root: Path) -> list[RunNote]:
    """Return the notes of a store, the oldest first. Raises UserError for one that cannot be read."""
    notes = []
    folder = root / FOLDER
    # A folder that cannot be read is an error: its notes may name artifacts that are needed.
    for path in sorted(path for path in folder.iterdir() if path.suffix == ".json") if folder.exists() else []:
        with contextlib.suppress(FileNotFoundError):  # its run has just finished
            notes.append(_read(path))
    return notes


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
        # The same boot is the same kernel, whose locks are visible. The same host with another boot has restarted.
        is_local = value["boot"] == _boot() != "" or value["host"] == socket.gethostname()
        if state is State.UNKNOWN and is_local:
            state = State.ENDED
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{path}: expected the note of a run, with the artifacts that it needs; delete it if no run is under way "
            "and none is to be resumed"
        ) from None
    return RunNote(path, words, references, state)


def _state_by_lock(file: IO[bytes]) -> State:
    """Return RUNNING where a process of this host holds the lock on a note, else UNKNOWN."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return State.RUNNING
    return State.UNKNOWN


def _new_path(store: Store) -> Path:
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return store.root / FOLDER / f"{began}-{os.getpid()}-{secrets.token_hex(4)}.json"


def _write(path: Path, value: dict[str, Any]) -> IO[str]:
    """Write a note and return its open file, which is locked before it is renamed to the note's name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        file = temporary.open("w", encoding="utf-8")
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
    """Return the kernel's boot id, which is equal in all containers of a host; empty where it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
