"""`--rebuild STAGE`: build a stage and what depends on it again, under the same keys.

The earlier artifacts stay until the new ones are complete. A run that was interrupted resumes its rebuild.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flows.plan.plan import named_jobs
from storage.errors import UserError
from storage.store.rebuilds import Rebuild, find_request, request
from storage.store.run_notes import State, changing_notes, read_notes
from storage.store.store import Store
from tasks.job import Job


def request_rebuild(jobs: Mapping[str, Job], name: str, title: str, store: Store) -> str:
    """Have a run of these jobs rebuild a stage or a round and what depends on it; return a line that says so.

    An interrupted rebuild of the same artifacts is resumed, not begun again. Raises `UserError` for an unknown name,
    and where another run may read the artifacts: it would see two contents of one artifact.
    """
    references = dependent_on(jobs, name)
    store.mark()
    if earlier := find_request(store.root, references):
        return _line(name, earlier, references, "resumes")
    with changing_notes(store):
        _refuse_readers(store, references)
        rebuild = request(store.root, f"{title} --rebuild {name}", references)
    return _line(name, rebuild, references, "begins")


def dependent_on(jobs: Mapping[str, Job], name: str) -> list[str]:
    """Return the references of a stage or a round, and of all jobs that depend on it, in the plan's order."""
    chosen = set(named_jobs(jobs, name))
    for reference, job in jobs.items():
        if any(need in chosen for need in job.needs()):
            chosen.add(reference)
    return [reference for reference in jobs if reference in chosen]


def _line(name: str, rebuild: Rebuild, references: Collection[str], verb: str) -> str:
    pending = len(rebuild.pending())
    return f"the rebuild of {name} {verb}: {pending} of {len(references)} stages are to be replaced"


def _refuse_readers(store: Store, references: Collection[str]) -> None:
    for note in read_notes(store.root):
        if note.state is not State.ENDED and note.references & set(references):
            raise UserError(f"--rebuild: {note.words} uses these artifacts ({note.path}); wait for its end")
