"""List every folder of a store, with the reason why `pretrieve gc` keeps it, if there is one.

An artifact is kept while a report, a version of a corpus or a run needs it, directly or through an artifact that was
built from it, and while it is younger than a given age.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.store.needs import ReportNeeds, report_needs
from storage.files import bytes_below
from storage.generation_cache.cache import generation_caches
from storage.store.run_notes import RunNote, State, read_notes
from storage.store.store import Store
from tasks.runtime.formatting import in_units

WORK = re.compile(r"(?P<stage>[A-Za-z0-9_]+)-(?P<key>[0-9a-f]{24})")
DAMAGED = re.compile(rf"{WORK.pattern}-\d+")
DELETED = re.compile(r"deleted-.+-\d+")
YOUNG = "its age: see --older-than"

Fingerprint = list[tuple[str, int, int]]
"""Path, inode and modification time of the files that say what is needed."""


@dataclass(frozen=True)
class Policy:
    """The rules for keeping artifacts that no report or version needs."""

    age: int
    """Seconds for which an artifact is kept."""
    unfinished: bool
    """Whether artifacts that only unfinished runs need may be deleted."""


@dataclass(frozen=True)
class Candidate:
    """A folder that nothing needs."""

    path: Path
    reference: str
    """`<stage>/<key>` of the artifact, or of the artifact that is being built; empty for other folders."""
    identity: tuple[int, int]
    """Inode and modification time when the folder was listed."""


@dataclass(frozen=True)
class Survey:
    """The contents of a store: which artifacts are kept and why, and which nothing needs."""

    policy: Policy
    kept: dict[str, str]
    """The reason why an artifact is kept, by reference."""
    candidates: list[Candidate]
    rows: list[tuple[str, str, str]]
    """For the user: folder, size, and why it is kept."""
    runs: list[str]
    """A line for each run that has a note."""
    refusals: list[str]
    """Lines that say why nothing may be deleted."""
    fingerprint: Fingerprint
    """The state of notes, reports and versions before they were read."""


def take_survey(store: Store, policy: Policy) -> Survey:
    """Return what the store holds, what is kept and what nothing needs."""
    # The fingerprint comes first: a change from here on is noticed before each deletion.
    before = fingerprint(store)
    notes, needs = read_notes(store.root), report_needs(store)
    kept, damaged = _reasons(store, needs, notes, policy)
    rows, candidates, refusals = [], [], [*needs.problems, *damaged]
    for folder, _ in store.manifests():
        reference = f"{folder.parent.name}/{folder.name}"
        with contextlib.suppress(FileNotFoundError):  # another process may move the folder
            if reference not in kept:
                candidates.append(Candidate(folder, reference, identity(folder)))
            rows.append((reference, in_units(bytes_below(folder)), kept.get(reference, "nothing")))
    for folder in store.foreign_folders():
        rows.append((str(folder.relative_to(store.root)), "", "not an artifact: it has no manifest; left alone"))
    for cache in generation_caches(store.root):
        name = str(cache.folder.relative_to(store.root))
        rows.append((name, in_units(bytes_below(cache.folder)), "always: generated queries, see made_by.json"))
    for folder, reference in _work_and_damaged(store):
        with contextlib.suppress(FileNotFoundError):  # another process may publish the folder
            reason = kept.get(reference) or _young(folder, policy.age)
            if reference and store.is_being_built(folder):
                reason = "being built by a run"
                # A run writes its note before it builds, so the note of a run that began meanwhile exists by now.
                if not any(reference in note.references for note in read_notes(store.root)):
                    refusals.append(f"{folder}: its process has no note of what it needs; wait for its end")
            if not reason:
                candidates.append(Candidate(folder, reference, identity(folder)))
            rows.append((str(folder.relative_to(store.root)), in_units(bytes_below(folder)), reason or "nothing"))
    runs = [f"{note.path.relative_to(store.root)}: {note.state}: {note.words}" for note in notes]
    return Survey(policy, kept, candidates, rows, runs, refusals, before)


def fingerprint(store: Store) -> Fingerprint:
    """Return what changes when a run begins or ends, or a report or a version is written."""
    files = [*(store.root / ".runs").glob("*.json"), *(store.root / "reports").rglob("*.json*")]
    states = []
    for path in sorted(files):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            states.append((str(path), status.st_ino, status.st_mtime_ns))
    return states


def identity(folder: Path) -> tuple[int, int]:
    """Return inode and modification time, which differ from those of a folder that was built in its place."""
    status = folder.stat()
    return status.st_ino, status.st_mtime_ns


def _reasons(
    store: Store, needs: ReportNeeds, notes: Iterable[RunNote], policy: Policy
) -> tuple[dict[str, str], list[str]]:
    """Return the reason for keeping each artifact that is needed or young, and what these were built from.

    Also return a line for each damaged artifact among them, since its manifest does not say what it was built from.
    """
    reasons, damaged = dict[str, str](), list[str]()
    waiting = list(_directly_needed(store, needs, notes, policy).items())
    while waiting:
        reference, reason = waiting.pop()
        if reference in reasons:
            continue
        reasons[reference] = reason
        stage, _, key = reference.partition("/")
        if stage == "source":
            continue
        folder = store.folder(stage, key)
        existed = folder.exists()  # before the manifest is read, since a run may publish the artifact in between
        if manifest := store.manifest(stage, key):
            waiting += [(reference, reason) for reference in manifest.references()]
        elif existed and folder.exists():
            damaged.append(
                f"{folder}: this artifact is needed and damaged, so what it was built from is not "
                "known; move it away with `pretrieve verify --aside`"
            )
    return reasons, damaged


def _directly_needed(store: Store, needs: ReportNeeds, notes: Iterable[RunNote], policy: Policy) -> dict[str, str]:
    """Return the references that reports, versions and runs name, and those of young artifacts, with the reason."""
    reasons = dict.fromkeys(needs.references, "a report or a version")
    young_from = time.time() - policy.age
    for note in notes:
        if note.state is not State.ENDED or not policy.unfinished:
            reasons |= dict.fromkeys(note.references - reasons.keys(), f"a run, {note.state}")
        if note.state is State.RUNNING:  # artifacts that a run builds but has not noted are protected by their age
            with contextlib.suppress(FileNotFoundError):
                young_from = min(young_from, note.path.stat().st_mtime)
    for folder, _ in store.manifests():
        with contextlib.suppress(FileNotFoundError):
            if folder.stat().st_mtime >= young_from:
                reasons.setdefault(f"{folder.parent.name}/{folder.name}", YOUNG)
    return reasons


def _work_and_damaged(store: Store) -> Iterator[tuple[Path, str]]:
    """Yield the folders of builds with their references, and quarantined and half-deleted folders with none."""
    for folder in sorted(path for path in (store.root / ".work").glob("*/") if not path.is_symlink()):
        if match := WORK.fullmatch(folder.name):
            yield folder, f"{match['stage']}/{match['key']}"
        elif DELETED.fullmatch(folder.name):
            yield folder, ""
    for folder in sorted(path for path in (store.root / ".damaged").glob("*/") if not path.is_symlink()):
        if DAMAGED.match(folder.name):
            yield folder, ""


def _young(folder: Path, age: int) -> str:
    """Return why a folder of `.work` or `.damaged` is kept for its age; "" where it is not."""
    if DELETED.fullmatch(folder.name):
        return ""
    times = [max(status.st_mtime, status.st_ctime) for status in _statuses(folder)]
    return YOUNG if max(times) > time.time() - age else ""


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    yield folder.stat()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            yield path.stat()
