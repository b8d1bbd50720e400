"""`pretrieve gc`: list what the store holds and what nothing needs, and delete the latter on request.

`flows.store.gc_survey` decides what is needed. `storage.store.run_notes` says why a deletion cannot race with a run.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path

import typer
from rich.table import Table

from flows.store.gc_survey import DELETED, Candidate, Policy, Survey, fingerprint, identity, take_survey
from flows.terminal import out, say_json
from storage.errors import UserError, one_line
from storage.files import bytes_below
from storage.store.run_notes import State, changing_notes, read_notes
from storage.store.store import Store
from tasks.runtime.formatting import in_units

AGE = re.compile(r"(\d{1,9})([smhd])")
AGE_KEPT = "1d"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _InUse(Exception):
    """Another process holds the lock."""


def collect_garbage(
    store_folder: Path, *, delete: bool = False, older_than: str = AGE_KEPT, unfinished: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    """List the folders of a store and the reasons for keeping them. With `delete`, delete the others.

    `older_than` is the age from which artifacts are deleted (30m, 12h, 7d); `unfinished` also deletes what only
    unfinished runs need. Raises UserError where what is needed cannot be determined.
    """
    store = Store.open(store_folder)
    if as_json and delete:
        raise UserError("--json: lists what would be deleted; expected without --delete")
    survey = take_survey(store, Policy(in_seconds(older_than), unfinished))
    if as_json:
        say_json({
            "rows": [dict(zip(("what", "size", "kept_for"), row, strict=True)) for row in survey.rows],
            "unneeded": [candidate.path for candidate in survey.candidates],
            "runs": survey.runs, "refusals": survey.refusals,
        })  # fmt: skip
        return
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
        delete_candidates(survey, store)
    else:
        size = in_units(sum(bytes_below(candidate.path) for candidate in survey.candidates))
        counted = f"{len(survey.candidates)} folders, {size}"
        out.print(f"{counted}, are needed by nothing; `pretrieve gc --delete` deletes them")


def in_seconds(text: str) -> int:
    """Return an age such as 30m, 12h or 7d in seconds. Raises UserError for any other text."""
    if not (parsed := AGE.fullmatch(text)):
        raise UserError(f"--older-than {text!r}: expected a number with s, m, h or d, such as 12h or 7d")
    return int(parsed[1]) * UNITS[parsed[2]]


def delete_candidates(survey: Survey, store: Store) -> None:
    """Delete the candidates that are still not needed, and print how many and how much.

    Raises UserError for what cannot be deleted, when everything else is.
    """
    latest, deleted, size, remains = survey, 0, 0, list[str]()
    for candidate in survey.candidates:
        binned, freed = None, bytes_below(candidate.path)
        with contextlib.suppress(_InUse, FileNotFoundError), _locked(candidate, store), changing_notes(store):
            if fingerprint(store) != latest.fingerprint:
                latest = take_survey(store, survey.policy)
            if latest.refusals:
                refusals = "; ".join(latest.refusals)
                raise UserError(f"{deleted} folders, {in_units(size)}, were deleted, then: {refusals}")
            if candidate.reference not in latest.kept and identity(candidate.path) == candidate.identity:
                binned = _bin(candidate.path, store)
        if binned and (problem := _remove(binned)):
            remains.append(f"{in_units(bytes_below(binned))} of {candidate.path.relative_to(store.root)}: {problem}")
        elif binned:
            deleted, size = deleted + 1, size + freed
        else:
            name = candidate.path.relative_to(store.root)
            out.print(f"{name}: left alone: it is in use, or has changed since it was listed")
    out.print(f"deleted {deleted} folders, {in_units(size)}")
    if survey.policy.unfinished:
        _delete_notes_of_ended_runs(store)
    if remains:
        raise UserError(f"cannot be deleted: {'; '.join(remains)}")


def _delete_notes_of_ended_runs(store: Store) -> None:
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


def _bin(folder: Path, store: Store) -> Path:
    """Rename a folder and return its new path: an interrupted deletion then leaves nothing that looks intact."""
    if DELETED.fullmatch(folder.name):
        return folder
    binned = store.root / ".work" / f"deleted-{folder.parent.name.lstrip('.')}-{folder.name}-{time.time_ns()}"
    binned.parent.mkdir(exist_ok=True)
    folder.rename(binned)
    return binned


def _remove(folder: Path) -> str:
    """Delete a folder whose files another garbage collection may be deleting, too.

    Return why files of it cannot be deleted; "" where none is left.
    """
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder)  # names the reason where something is left
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)
    return ""
