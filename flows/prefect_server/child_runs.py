"""Run a planned recipe where its stages belong: those for a GPU on the `gpu` pool, the others in this process.

A stage starts when what it needs is whole, so stages that do not need each other run side by side, one on each GPU
worker. A stage for the CPU runs in the main thread of this process, where a cancelled run interrupts it. A stage for
the GPU is a child run of the deployment `run_stage/gpu`; this process waits for it in a thread and holds no lock, so
parent and child never wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from storage.artifact import Manifest
from storage.store.store import Store
from tasks.job import Job
from tasks.runtime.prefect_task import TAG
from tasks.session import Session
from tasks.stage import report_done, run_job

T = TypeVar("T")

DEPLOYMENT = "run_stage/gpu"
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_UNTIL_NOBODY_TOOK_IT = 60.0
BUILT_AT_MOST = (
    2  # children of a run that build a stage and whose artifact is then not there, before somebody must look
)


class ChildFailed(Exception):
    """A stage that ran elsewhere did not end well."""


class Abandoned(Exception):
    """This run ends; what runs elsewhere is no longer waited for."""


@dataclass(frozen=True)
class Request:
    """The recipe that a run was asked for, as its children are asked for a stage of it."""

    recipe: str
    changes: list[str]


def run_all(jobs: Mapping[str, Job], request: Request, current: Session) -> None:
    """Build every job, or find it whole; what is done is noted in `current`.

    Raises what the first stage that failed raised. Children that still run then go on, and are found by a retry; when
    this run is cancelled, Prefect's server cancels them.
    """
    children = Children(request, current)
    left, futures = dict(jobs), dict[str, Any]()
    try:
        while left:
            for reference, job in left.items():
                needed = [need for need in job.needs() if need in left]
                if reference not in futures and runs_elsewhere(job, current.store) and set(needed) <= futures.keys():
                    futures[reference] = children.submit(job, [futures[need] for need in needed])
            if mine := _ready(left, futures.keys()):
                current.done[mine.reference] = run_job(mine, current)
                del left[mine.reference]
            elif not any(_is_done(futures[reference]) for reference in futures.keys() & left.keys()):
                time.sleep(SECONDS_BETWEEN_LOOKS)
            for reference in [each for each in left if each in futures and _is_done(futures[each])]:
                manifest = Manifest.from_json(futures[reference].result())
                current.done[reference] = report_done(left.pop(reference), current, manifest, cached=False)
    finally:
        children.leave()


def runs_elsewhere(job: Job, store: Store) -> bool:
    """Whether a worker with a GPU must build it."""
    return job.needs_gpu and store.manifest(job.stage.name, job.key) is None


def _is_done(future: Any) -> bool:
    """Whether a thread has ended. (A future's `state` would ask the server, which may be away.)"""
    done: bool = future.wrapped_future.done()
    return done


def _ready(left: Mapping[str, Job], elsewhere: Any) -> Job | None:
    """The first job that can run here now."""
    for reference, job in left.items():
        if reference not in elsewhere and not any(need in left for need in job.needs()):
            return job
    return None


@dataclass
class Children:
    """The child runs of a run."""

    request: Request
    current: Session
    _left: threading.Event = field(default_factory=threading.Event)

    def submit(self, job: Job, after: list[Any]) -> Any:
        """Have a worker build the job when the futures `after` are done; a future of its manifest."""
        from tasks.runtime.prefect_task import task_of

        return task_of(job, False, lambda: self.build(job)).submit(wait_for=after)

    def leave(self) -> None:
        """Wait for none any more."""
        self._left.set()

    def build(self, job: Job) -> Manifest:
        """Have a child run build the job, and wait for it."""
        self.current.tell(f"{job.label} … on the gpu pool")
        store, built = self.current.store, 0
        for lost in count():
            built += self._run(job, lost)
            if manifest := store.manifest(job.stage.name, job.key):
                return manifest
            if built == BUILT_AT_MOST:
                break
        raise ChildFailed(
            f"{job.label}: the child run completed, but {store.folder(job.stage.name, job.key)} is not there; "
            "have the workers of both pools the same store (PRETRIEVE_STORE)?"
        )

    def _run(self, job: Job, lost: int) -> bool:
        """See one child run to its end: the one that this run has started for the job before, or a new one.

        `lost` is how many children of it have completed whose artifact is gone: they cannot be asked again. Returns
        whether this one did not complete before it was asked.
        """
        from prefect.deployments import run_deployment
        from prefect.runtime import flow_run

        parameters = {"recipe": self.request.recipe, "stage": job.key, "changes": self.request.changes}
        key, tags = f"{flow_run.id}:{job.key}:{lost}", [TAG, job.stage.name]
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
            if state.is_final() and not ending:
                raise ChildFailed(f"{job.label}: child run {child.id} ended {state.name}: {state.message or ''}")
            if state.is_final():
                self._patiently(job, lambda: _retry(child.id))
                ending = False
        return True

    def _states(self, child: UUID, job: Job) -> Iterator[Any]:
        """The child's states, one every few seconds."""
        from prefect import get_client

        began, told = time.monotonic(), False
        with get_client(sync_client=True) as client:
            while True:
                state: Any = self._patiently(job, lambda: client.read_flow_run(child).state)
                yield state
                if state.is_scheduled() and not told and time.monotonic() - began > SECONDS_UNTIL_NOBODY_TOOK_IT:
                    told = True
                    self.current.tell(
                        f"{job.label}: no worker of the gpu pool has taken it yet: all are busy, or none runs "
                        "(prefect worker start --pool gpu --limit 1)"
                    )
                self._wait(job)

    def _patiently(self, job: Job, ask: Callable[[], T]) -> T:
        """What the server answers; while it is away, it is asked again."""
        import httpx

        told = False
        while True:
            try:
                return ask()
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                    raise
                if not told:
                    told = True
                    self.current.tell(f"{job.label}: the server does not answer ({type(error).__name__}); waiting")
                self._wait(job)

    def _wait(self, job: Job) -> None:
        if self._left.wait(SECONDS_BETWEEN_LOOKS):
            raise Abandoned(f"{job.label}: its child run goes on without this one")


def _retry(child: UUID) -> None:
    """Have the same run start again, if it has not yet: what it has finished is found by its stage."""
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
