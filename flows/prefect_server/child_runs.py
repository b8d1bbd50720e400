"""Run a planned recipe in two places: stages for a GPU on the `gpu` pool, the others in this process.

A stage starts when its inputs are complete, so independent stages run in parallel, one on each GPU worker. A stage for
the CPU runs in the main thread of this process, where a cancelled run interrupts it. A stage for the GPU is a child run
of the deployment `run_stage/run-stage`; this process waits for it in a thread and holds no lock, so parent and child
never wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from flows.prefect_server.automations import SILENT
from flows.prefect_server.services import HEARTBEAT_SECONDS
from storage.artifact import Manifest
from storage.store.store import Store
from tasks.job import Job
from tasks.runtime.prefect_task import TAG
from tasks.session import Session
from tasks.stage import report_done, run_job

T = TypeVar("T")

DEPLOYMENT = "run_stage/run-stage"
POLL_SECONDS = 2.0
SECONDS_UNTIL_WARNING = 60.0
SECONDS_TO_TAKE_BACK = 2.0 * HEARTBEAT_SECONDS
MAX_BUILDS = 2  # child runs that complete without their artifact appearing in this store, before the run fails


class ChildFailed(Exception):
    """A child run failed, or its artifact is missing."""


class Abandoned(Exception):
    """This run ends while its child runs continue."""


@dataclass(frozen=True)
class Request:
    """The recipe and changes of a run, which its child runs get, too."""

    recipe: str
    changes: list[str]


def run_all(jobs: Mapping[str, Job], request: Request, current: Session) -> None:
    """Build every job that the store lacks, and note each in `current.done`.

    Raises the error of the first stage that failed. Child runs that still run then continue, and a retry finds them;
    when this run is cancelled, Prefect's server cancels them.
    """
    children = Children(request, current)
    waiting, futures = dict(jobs), dict[str, Any]()
    try:
        while waiting:
            for reference, job in waiting.items():
                needed = [need for need in job.needs() if need in waiting]
                if reference not in futures and runs_elsewhere(job, current.store) and set(needed) <= futures.keys():
                    futures[reference] = children.submit(job, [futures[need] for need in needed])
            if local := _ready(waiting, futures.keys()):
                current.done[local.reference] = run_job(local, current)
                del waiting[local.reference]
            elif not any(_is_done(futures[reference]) for reference in futures.keys() & waiting.keys()):
                time.sleep(POLL_SECONDS)
            for reference in [key for key in waiting if key in futures]:
                # A stage whose input has failed ends, too, but only the input's own error says why.
                if any(need in waiting for need in waiting[reference].needs()) or not _is_done(futures[reference]):
                    continue
                manifest = Manifest.from_json(futures[reference].result())
                current.done[reference] = report_done(waiting.pop(reference), current, manifest, cached=False)
    finally:
        children.leave()


def runs_elsewhere(job: Job, store: Store) -> bool:
    """Return whether a worker with a GPU must build the job."""
    return job.needs_gpu and store.up_to_date(job.stage.name, job.key) is None


def _is_done(future: Any) -> bool:
    """Return whether a thread has ended. (A future's `state` would need the server, which may not answer.)"""
    done: bool = future.wrapped_future.done()
    return done


def _ready(waiting: Mapping[str, Job], elsewhere: Any) -> Job | None:
    """Return the first job that can run in this process now."""
    for reference, job in waiting.items():
        if reference not in elsewhere and not any(need in waiting for need in job.needs()):
            return job
    return None


@dataclass
class Children:
    """The child runs of a run."""

    request: Request
    current: Session
    _leaving: threading.Event = field(default_factory=threading.Event)

    def submit(self, job: Job, after: list[Any]) -> Any:
        """Have a worker build the job when the futures `after` are done; return a future of its manifest."""
        from tasks.runtime.prefect_task import task_of

        return task_of(job, False, lambda: self.build(job)).submit(wait_for=after)

    def leave(self) -> None:
        """Stop waiting for child runs."""
        self._leaving.set()

    def build(self, job: Job) -> Manifest:
        """Have a child run build the job, and wait for its artifact."""
        self.current.print_line(f"{job.label} … on the gpu pool")
        store, completed_builds = self.current.store, 0
        # Part of the idempotency key: a completed run whose artifact is gone cannot be started again.
        for num_lost in count():
            if self._run(job, num_lost):
                completed_builds += 1
            if manifest := store.up_to_date(job.stage.name, job.key):
                return manifest
            if completed_builds == MAX_BUILDS:
                break
        raise ChildFailed(
            f"{job.label}: the child run completed, but {store.folder(job.stage.name, job.key)} does not exist; "
            "do the workers of both pools use the same store (PRETRIEVE_STORE)?"
        )

    def _run(self, job: Job, num_lost: int) -> bool:
        """Wait for the end of a child run: the one that this run started for the job before, or a new one.

        `num_lost` counts child runs that completed but whose artifact is gone. Returns False where the child run had
        completed already, and True where it completed now.
        """
        from prefect.deployments import run_deployment
        from prefect.runtime import flow_run

        parameters = {"recipe": self.request.recipe, "stage": job.key, "changes": self.request.changes}
        key, tags = f"{flow_run.id}:{job.key}:{num_lost}", [TAG, job.stage.name]
        child: Any = self._patiently(
            job,
            lambda: run_deployment(
                DEPLOYMENT, parameters=parameters, flow_run_name=job.label, timeout=0, tags=tags, idempotency_key=key
            ),
        )
        if child.state.is_completed():
            return False
        ending = child.state.is_final() or child.state.is_cancelling()  # of an earlier attempt, which this one retries
        for state in self._states(child.id, job):
            if state.is_completed():
                break
            if state.is_final() and not ending and not _may_be_alive(state):
                raise ChildFailed(f"{job.label}: child run {child.id} ended {state.name}: {state.message or ''}")
            if state.is_final() and ending:
                self._patiently(job, lambda: _retry(child.id))
                ending = False
        return True

    def _states(self, child: UUID, job: Job) -> Iterator[Any]:
        """Yield the child run's state every few seconds."""
        from prefect import get_client

        began, warned = time.monotonic(), False
        with get_client(sync_client=True) as client:
            while True:
                state: Any = self._patiently(job, lambda: client.read_flow_run(child).state)
                yield state
                if state.is_scheduled() and not warned and time.monotonic() - began > SECONDS_UNTIL_WARNING:
                    warned = True
                    self.current.print_line(
                        f"{job.label}: no worker of the gpu pool has taken it yet: all are busy, or none runs "
                        "(pretrieve worker gpu)"
                    )
                self._wait(job)

    def _patiently(self, job: Job, request: Callable[[], T]) -> T:
        """Return the server's answer; while the server does not answer, send the request again."""
        import httpx

        warned = False
        while True:
            try:
                return request()
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                    raise
                if not warned:
                    warned = True
                    self.current.print_line(
                        f"{job.label}: the server does not answer ({type(error).__name__}); waiting"
                    )
                self._wait(job)

    def _wait(self, job: Job) -> None:
        if self._leaving.wait(POLL_SECONDS):
            raise Abandoned(f"{job.label}: its child run continues without this run")


def _may_be_alive(state: Any) -> bool:
    """Return whether a run was called Crashed for its silence just now: its worker may still take it back."""
    silent = state.is_crashed() and state.message == SILENT
    return bool(silent and (datetime.now(UTC) - state.timestamp).total_seconds() < SECONDS_TO_TAKE_BACK)


def _retry(child: UUID) -> None:
    """Have Prefect start the same child run again, if it has ended; its finished stage is reused."""
    from prefect import get_client
    from prefect.client.schemas.responses import SetStateStatus
    from prefect.states import AwaitingRetry

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(child).state
        if state is None or not state.is_final():
            return
        answer: Any = client.set_flow_run_state(child, AwaitingRetry())
        if answer.status != SetStateStatus.ACCEPT:
            raise ChildFailed(
                f"child run {child} cannot be retried: {getattr(answer.details, 'reason', answer.status)}"
            )
