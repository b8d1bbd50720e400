"""The attempts of the runs of a matrix or a study: what is complete, running, failed or missing, and what comes next.

Several processes or hosts may work on the same runs: each takes runs that no other has begun. A run that fails stops no
other run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Generic

from flows.matrix.planned_run import Definition, PlannedRun
from storage.errors import UserError, one_line
from storage.files import write_atomically
from storage.store import run_notes
from storage.store.run_notes import NotedRun, RunNote, read_notes
from storage.store.store import Store
from tasks.job import needed_references


class State(StrEnum):
    """The state of a run."""

    COMPLETE = "complete"
    RUNNING = "running"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"


@dataclass(frozen=True)
class Attempts(Generic[Definition]):
    """The attempts of runs that share a store."""

    store: Store
    folder: Callable[[Definition], Path]
    """The folder in which the reason of a run's failure is kept."""

    def state(self, run: PlannedRun[Definition], notes: Sequence[RunNote] | None = None) -> State:
        """Return the state of a run, also of one that another process or host runs."""
        reference = f"report/{run.report}"
        if self.store.up_to_date("report", run.report):
            return State.COMPLETE
        notes = read_notes(self.store.root) if notes is None else notes
        own = [note.state for note in notes if reference in note.references]
        if any(state is not run_notes.State.ENDED for state in own):
            return State.RUNNING
        if self.failure(run):
            return State.FAILED
        return State.INTERRUPTED if own else State.MISSING

    def next(self, waiting: Sequence[PlannedRun[Definition]]) -> PlannedRun[Definition] | None:
        """Return the run to begin next, or None if other processes are running all that wait.

        It is the first of which no other process is to build a stage, or else the first that no other runs, which waits
        for the stages that both have.
        """
        ended = run_notes.State.ENDED
        notes = [note.references for note in read_notes(self.store.root) if note.state is not ended]
        elsewhere = frozenset[str]().union(*notes)
        free = [run for run in waiting if f"report/{run.report}" not in elsewhere]
        independent = (run for run in free if elsewhere.isdisjoint(run.missing(self.store)))
        return next(independent, next(iter(free), None))

    def choosing(self) -> AbstractContextManager[None]:
        """Hold the right to choose a run from `next` until `begin`, so that no two processes choose the same one."""
        return self.store.lock("runs", "next", lambda: None)

    def begin(self, run: PlannedRun[Definition], command: str, words: str) -> NotedRun:
        """Note that this process runs a run, for the other processes; `attempt` closes the note."""
        self._failure_file(run).unlink(missing_ok=True)
        note = NotedRun(self.store, command, words)
        note.uses(needed_references(run.jobs.values()))
        return note

    def attempt(
        self, run: PlannedRun[Definition], note: NotedRun, build: Callable[[NotedRun], None],
        print_line: Callable[[str], None],
    ) -> bool:  # fmt: skip
        """Build a run that was begun; return whether it was built. The reason of a failure is kept and printed.

        What ends everything, such as a signal or the loss of Prefect's server, is raised.
        """
        import httpx

        try:
            with closing(note):
                build(note)
                note.finish()
        except BaseException as error:
            if isinstance(error, httpx.TransportError) or not isinstance(error, Exception):
                raise
            self._note_failure(run, error)
            print_line(f"{note.title} failed: {self.failure(run)}; the next run starts")
            return False
        return True

    def failure(self, run: PlannedRun[Definition]) -> str:
        """Return why the last attempt of a run failed, or "" where it did not."""
        try:
            content = json.loads(self._failure_file(run).read_bytes())
            return str(content["error"]) if content["report"] == run.report else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _note_failure(self, run: PlannedRun[Definition], error: Exception) -> None:
        text = one_line(f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error))
        content = {"report": run.report, "error": text, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomically(self._failure_file(run), json.dumps(content) + "\n")

    def _failure_file(self, run: PlannedRun[Definition]) -> Path:
        return self.folder(run.definition) / "failure.json"
