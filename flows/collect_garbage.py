"""`pretrieve gc`: list what the store holds and what nothing needs, and delete the latter on request.

An artifact is kept while a report, a version of a corpus or a run needs it, or something that is itself made of it, and
while it is younger than a given age. `storage.store.run_notes` says why a deletion cannot meet a run that begins.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Table

from flows.store_needs import ReportNeeds, report_needs
from flows.terminal import out
from storage.errors import UserError, one_line
from storage.files import bytes_below
from storage.ledger.ledger import ledgers
from storage.store.run_notes import RunNote, State, changing_notes, read_notes
from storage.store.store import Store
from tasks.runtime.formatting import in_units

WORK = re.compile(r"(?P<stage>[A-Za-z0-9_]+)-(?P<key>[0-9a-f]{24})")
DAMAGED = re.compile(rf"{WORK.pattern}-\d+")
DELETED = re.compile(r"deleted-.+-\d+")
AGE = re.compile(r"(\d{1,9})([smhd])")
AGE_KEPT = "1d"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _InUse(Exception):
    """Another process holds the lock."""


Fingerprint = list[tuple[str, int, int]]
"""Path, inode and time of change of the files that say what is needed."""


@dataclass(frozen=True)
class Candidate:
    """A folder that nothing needs."""

    path: Path
    reference: str
    """`<stage>/<key>` of the artifact that it is, or of which it is a part; empty where it is none any more."""
    identity: tuple[int, int]
    """Inode and time of change of what it was when it was listed."""


@dataclass(frozen=True)
class Survey:
    """What is kept, why, and what is not."""

    kept: dict[str, str]
    """By reference the reason why an artifact is kept."""
    candidates: list[Candidate]
    rows: list[tuple[str, str, str]]
    """What there is, its size, and why it is kept or not: for people."""
    runs: list[str]
    """A line for each run that has a note."""
    refusals: list[str]
    """Why nothing may be deleted, a line each."""
    seen: Fingerprint
    """The state of notes, reports and versions before they were read."""


def collect_garbage(
    store_folder: Path, *, delete: bool = False, older_than: str = AGE_KEPT, unfinished: bool = False
) -> None:
    """List what the store holds and why it is kept; delete what nothing needs if `delete`.

    `older_than` is the age from which artifacts are deleted (30m, 12h, 7d); `unfinished` also deletes what only
    unfinished runs need. Raises UserError where it cannot be known what is needed.
    """
    store, age = Store.open(store_folder), in_seconds(older_than)
    survey = look(store, age, unfinished)
    table = Table("what", "size", "kept for", title=str(store.root), title_justify="left")
    for row in survey.rows:
        table.add_row(*row)
    out.print(table)
    for line in survey.runs:
        out.print(line)
    if delete and survey.refusals:
        raise UserError(f"nothing was deleted: {'; '.join(survey.refusals)}")
    for line in survey.refusals:
        typer.echo(one_line(f"pretrieve: --delete would be refused: {line}"), err=True)
    if delete:
        _delete_all(survey, store, age, unfinished)
    else:
        size = in_units(sum(bytes_below(candidate.path) for candidate in survey.candidates))
        counted = f"{len(survey.candidates)} folders, {size}"
        out.print(f"{counted}, are needed by nothing; `pretrieve gc --delete` deletes them")


def in_seconds(text: str) -> int:
    """Return an age such as 30m, 12h or 7d in seconds. Raises UserError for any other text."""
    if not (parsed := AGE.fullmatch(text)):
        raise UserError(f"--older-than {text!r}: expected a number with s, m, h or d, such as 12h or 7d")
    return int(parsed[1]) * UNITS[parsed[2]]


def look(store: Store, age: int, unfinished: bool) -> Survey:
    """Return what the store holds, what is kept and what nothing needs."""
    seen = _fingerprint(store)  # before anything is read: what changes from here on is noticed before each deletion
    notes, needs = read_notes(store.root), report_needs(store)
    kept, damaged = _reasons(store, needs, notes, age, unfinished)
    rows, candidates, refusals = [], [], [*needs.problems, *damaged]
    for folder, _ in store.manifests():
        reference = f"{folder.parent.name}/{folder.name}"
        with contextlib.suppress(FileNotFoundError):  # another process moves it meanwhile
            if reference not in kept:
                candidates.append(Candidate(folder, reference, _identity(folder)))
            rows.append((reference, in_units(bytes_below(folder)), kept.get(reference, "nothing")))
    for folder in store.foreign_folders():
        rows.append((str(folder.relative_to(store.root)), "", "not ours: no manifest of pretrieve; left alone"))
    for ledger in ledgers(store.root):
        name = str(ledger.folder.relative_to(store.root))
        rows.append((name, in_units(bytes_below(ledger.folder)), "always: generated queries, see made_by.json"))
    for folder, reference in _work_and_damaged(store):
        with contextlib.suppress(FileNotFoundError):  # it is published meanwhile
            reason = kept.get(reference) or _young(folder, age)
            if reference and store.is_being_built(folder):
                reason = "being built by a run"
                # A note is written before the build begins, so one that we have not read yet is there by now.
                if not any(reference in note.references for note in read_notes(store.root)):
                    refusals.append(f"{folder}: its process has no note of what it needs; wait for its end")
            if not reason:
                candidates.append(Candidate(folder, reference, _identity(folder)))
            rows.append((str(folder.relative_to(store.root)), in_units(bytes_below(folder)), reason or "nothing"))
    runs = [f"{note.path.relative_to(store.root)}: {note.state}: {note.words}" for note in notes]
    return Survey(kept, candidates, rows, runs, refusals, seen)


def _reasons(
    store: Store, needs: ReportNeeds, notes: Iterable[RunNote], age: int, unfinished: bool
) -> tuple[dict[str, str], list[str]]:
    """Return why each artifact is kept that is needed, or that something needed or young is made of.

    Also return a line for each of these that is damaged, since its manifest does not say what it was made of.
    """
    roots = dict.fromkeys(needs.references, "a report or a version")
    began = time.time() - age
    for note in notes:
        if note.state is not State.ENDED or not unfinished:
            roots |= {each: f"a run, {note.state}" for each in note.references if each not in roots}
        if note.state is State.RUNNING:  # what it builds besides has no other protection
            with contextlib.suppress(FileNotFoundError):
                began = min(began, note.path.stat().st_mtime)
    for folder, _ in store.manifests():
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_mtime >= began:
                roots.setdefault(f"{folder.parent.name}/{folder.name}", "its age: see --older-than")
    reasons, damaged, waiting = dict[str, str](), list[str](), list(roots.items())
    while waiting:
        reference, reason = waiting.pop()
        if reference not in reasons:
            reasons[reference] = reason
            stage, _, key = reference.partition("/")
            if stage == "source":
                continue
            folder = store.folder(stage, key)
            existed = folder.exists()  # asked first: a run may publish the artifact after we looked for its manifest
            if manifest := store.manifest(stage, key):
                waiting += [(each, reason) for each in manifest.references()]
            elif existed and folder.exists():
                damaged.append(
                    f"{folder}: it is needed, and damaged, so what it was made of is not known; move "
                    "it away with `pretrieve verify --aside`"
                )
    return reasons, damaged


def _work_and_damaged(store: Store) -> Iterator[tuple[Path, str]]:
    """Yield the folders of builds with their references, and quarantined and half deleted ones with none."""
    for folder in sorted(path for path in (store.root / ".work").glob("*/") if not path.is_symlink()):
        if named := WORK.fullmatch(folder.name):
            yield folder, f"{named['stage']}/{named['key']}"
        elif DELETED.fullmatch(folder.name):
            yield folder, ""
    for folder in sorted(path for path in (store.root / ".damaged").glob("*/") if not path.is_symlink()):
        if DAMAGED.match(folder.name):
            yield folder, ""


def _young(folder: Path, age: int) -> str:
    """Return why a folder of `.work` or `.damaged` is too young, or an empty text."""
    if DELETED.fullmatch(folder.name):
        return ""
    times = [max(status.st_mtime, status.st_ctime) for status in _statuses(folder)]
    return "its age: see --older-than" if max(times) > time.time() - age else ""


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    yield folder.stat()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            yield path.stat()


def _identity(folder: Path) -> tuple[int, int]:
    """Return what tells a folder from one that was built in its place."""
    status = folder.stat()
    return status.st_ino, status.st_mtime_ns


def _delete_all(survey: Survey, store: Store, age: int, unfinished: bool) -> None:
    """Delete the candidates that nothing has come to need since they were listed; print how many and how much."""
    known, deleted, size = survey, 0, 0
    for candidate in survey.candidates:
        binned, taken = None, bytes_below(candidate.path)
        with contextlib.suppress(_InUse, FileNotFoundError), _locked(candidate, store), changing_notes(store):
            if _fingerprint(store) != known.seen:
                known = look(store, age, unfinished)
            if known.refusals:
                raise UserError(f"{deleted} folders, {in_units(size)}, were deleted, then: {'; '.join(known.refusals)}")
            if candidate.reference not in known.kept and _identity(candidate.path) == candidate.identity:
                binned = _bin(candidate.path, store)
        if binned:
            _remove(binned)
            deleted, size = deleted + 1, size + taken
        else:
            name = candidate.path.relative_to(store.root)
            out.print(f"{name}: left alone: it is in use, or has changed since it was listed")
    out.print(f"deleted {deleted} folders, {in_units(size)}")
    if unfinished:
        with changing_notes(store):
            for note in read_notes(store.root):
                if note.state is State.ENDED:
                    note.path.unlink(missing_ok=True)


def _locked(candidate: Candidate, store: Store) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the candidate's artifact. Raises _InUse where another process has it."""
    if not candidate.reference:
        return contextlib.nullcontext()

    def in_use() -> None:
        raise _InUse

    stage, _, key = candidate.reference.partition("/")
    return store.lock(stage, key, in_use)


def _fingerprint(store: Store) -> Fingerprint:
    """Return what changes when a run begins or ends, or a report or a version is written."""
    files = [*(store.root / ".runs").glob("*.json"), *(store.root / "reports").rglob("*.json*")]
    found = []
    for path in sorted(files):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((str(path), status.st_ino, status.st_mtime_ns))
    return found


def _bin(folder: Path, store: Store) -> Path:
    """Rename a folder, so that a deletion that is cut off leaves nothing that looks intact; return where it is."""
    if DELETED.fullmatch(folder.name):
        return folder
    binned = store.root / ".work" / f"deleted-{folder.parent.name.lstrip('.')}-{folder.name}-{time.time_ns()}"
    binned.parent.mkdir(exist_ok=True)
    folder.rename(binned)
    return binned


def _remove(folder: Path) -> None:
    """Delete a folder, of which another collection may be deleting files too."""
    if folder.is_symlink():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
