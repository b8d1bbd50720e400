"""The stage mechanism: a function that fills a folder becomes a step that is never done twice.

`@stage(version=1, table=Passages)` turns `body(out, *inputs, settings)` into a call that returns an
`Artifact[Passages]`: found in the store by its key, or built, one builder at a time, resuming what an
earlier attempt left. Inside a Prefect flow the call is a task of that run with the same key; where
Prefect is not installed or no flow runs, it is a plain function with the same artifacts.
Raise `version` when a stage's meaning changes: code is not hashed.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from storage.artifact import Artifact, File, Manifest, Source, hash_of, key_of
from storage.files import full_disk_in_words
from storage.rows import num_rows
from storage.settings import Settings
from storage.store import Store
from storage.tables import Table
from tasks.machine import cpu_seconds, described

T = TypeVar("T", bound=Table)
Input = Artifact[Any] | Source | Sequence[Artifact[Any]] | None


class Execution(Settings):
    """How to run, never what comes out: no value here is in a key."""

    workers: int = 2
    """Processes that split the corpus."""
    threads: int = 2
    """Threads of PyTorch and FAISS."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    processes: int = Field(default=1, gt=0)
    """Processes that train a model together, each on a GPU of its own, through torchrun."""


@dataclass(frozen=True)
class Done:
    """One stage of a run, as the terminal and the report list it."""

    stage: str
    round: str
    key: str
    cached: bool
    seconds: float
    """What building it took, in this run or, where it was cached, in the run that built it."""
    rows: int | None
    inputs: list[Any]
    """References of its inputs."""


@dataclass
class Session:
    """Where stages find their store, how they run, and what they have done."""

    store: Store
    execution: Execution = field(default_factory=Execution)
    planning: bool = False
    """Only work out keys and look what is there; build nothing."""
    last: str | None = None
    """The key of the stage after which to stop; None goes to the end of the chain."""
    tell: Callable[[str], None] = lambda line: None
    done: dict[str, Done] = field(default_factory=dict)
    """Stages by `<stage>/<key>`, in the order in which they were first called."""


class Stopped(Exception):
    """The stage that the session was told to stop after is done."""


_session: contextvars.ContextVar[Session] = contextvars.ContextVar("session")
_round: contextvars.ContextVar[str] = contextvars.ContextVar("round", default="")


@contextlib.contextmanager
def session(current: Session) -> Iterator[Session]:
    """Stages called in this block use `current`."""
    token = _session.set(current)
    try:
        yield current
    finally:
        _session.reset(token)


@contextlib.contextmanager
def in_round(name: str) -> Iterator[None]:
    """Stages called in this block are listed under the name of a round."""
    token = _round.set(name)
    try:
        yield
    finally:
        _round.reset(token)


def execution() -> Execution:
    """How the current session runs."""
    return _session.get().execution


def stage(*, version: int, table: type[T], trains: bool = False) -> Callable[[Callable[..., None]], Stage[T]]:
    """Turn `body(out, *inputs, settings=...)` into a stage of one `table`; `trains`: maybe in several processes."""
    return lambda body: Stage(body, version, table, trains)


class Stage(Generic[T]):
    """A step of the chain; call it with its inputs, get its artifact."""

    def __init__(self, body: Callable[..., None], version: int, table: type[T], trains: bool) -> None:
        update_wrapper(self, body)
        self.body, self.version, self.table, self.trains = body, version, table, trains
        self.name: str = body.__name__
        self.parameters = [name for name in inspect.signature(body).parameters if name not in ("out", "settings")]

    def __call__(self, *inputs: Input, settings: Settings | None = None) -> Artifact[T]:
        """The artifact of these inputs and settings: from the store if it is whole there, else built."""
        job = Job(self, inputs, settings)
        current = _session.get()
        artifact: Artifact[T] = Artifact(self.name, job.key, current.store.folder(self.name, job.key))
        if artifact.reference in current.done:
            return artifact
        manifest = current.store.manifest(self.name, job.key)
        cached = manifest is not None
        if not current.planning:
            manifest = _run(job, current, cached)
        current.done[artifact.reference] = Done(
            self.name, _round.get(), job.key, cached, float(manifest.built["seconds"]) if manifest else 0.0,
            manifest.rows if manifest else None, list(job.references.values()),
        )  # fmt: skip
        if artifact.key == current.last:
            raise Stopped
        return artifact


class Job:
    """One call of a stage: what it would make is known by its key before anything is built."""

    def __init__(self, made_by: Stage[Any], inputs: Sequence[Input], settings: Settings | None) -> None:
        if len(inputs) != len(made_by.parameters):
            raise TypeError(f"{made_by.name} takes {made_by.parameters}, got {len(inputs)} inputs")
        self.stage, self.inputs, self.settings = made_by, inputs, settings
        self.values: dict[str, Any] = settings.model_dump(mode="json") if settings else {}
        self.references = {name: _reference(each) for name, each in zip(made_by.parameters, inputs, strict=True)}
        self.key = key_of(made_by.name, made_by.version, self.values, self.references)

    def build(self, current: Session) -> Manifest:
        """Make the artifact, or find that another process has made it meanwhile."""
        name, store = self.stage.name, current.store
        with store.lock(name, self.key, lambda: current.tell(f"{name} {self.key[:8]}: another run builds it; waiting")):
            if manifest := store.manifest(name, self.key):
                return manifest
            for artifact in self._artifacts():
                store.check(artifact)
            started, cpu = time.monotonic(), cpu_seconds()
            work = store.begin(name, self.key)
            with full_disk_in_words(work):
                self._fill(work, store)
                return store.publish(name, self.key, lambda files, logs: self._manifest(files, logs, started, cpu))

    def _fill(self, work: Path, store: Store) -> None:
        """Run the stage's body, in several processes where it trains and the run says so."""
        if self.stage.trains and execution().processes > 1:
            from tasks.ranks import run_together

            run_together(self.stage.body, work, self.inputs, self.settings, store)
        else:
            self.stage.body(work, *self.inputs, **({"settings": self.settings} if self.settings else {}))

    def _artifacts(self) -> Iterator[Artifact[Any]]:
        for each in self.inputs:
            for one in each if isinstance(each, Sequence) else [each]:
                if isinstance(one, Artifact):
                    yield one

    def _manifest(self, files: dict[str, File], logs: dict[str, File], started: float, cpu: float) -> Manifest:
        made_by = self.stage
        rows = num_rows(_session.get().store.work(made_by.name, self.key)) if made_by.table.schema else None
        built = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - started, 3),
            "cpu_seconds": round(cpu_seconds() - cpu, 3),
            "execution": execution().model_dump(mode="json"),
            **described(execution().device),
        }
        return Manifest(
            stage=made_by.name, version=made_by.version, key=self.key, settings=self.values, inputs=self.references,
            files=files, logs=logs, hash=hash_of(files), rows=rows, schema=made_by.table.__name__,
            seed=self.values.get("seed"), built=built,
        )  # fmt: skip


def _reference(given: Input) -> Any:
    if given is None or isinstance(given, (Artifact, Source)):
        return given.reference if given else None
    return [each.reference for each in given]


def _run(job: Job, current: Session, cached: bool) -> Manifest:
    place = f" ({_round.get()})" if _round.get() else ""
    label = f"{job.stage.name}{place} {job.key[:8]}"
    if not cached:
        current.tell(f"{label} …")
    manifest = _as_prefect_task(job, current, label, cached) if _in_a_flow() else job.build(current)
    rows = f", {manifest.rows:,} rows" if manifest.rows is not None else ""
    how = "cached" if cached else f"built in {manifest.built['seconds']:.1f} s"
    current.tell(f"{label}: {how}{rows}")
    return manifest


def _in_a_flow() -> bool:
    if "prefect" not in sys.modules:  # a flow that runs has imported it
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


def _as_prefect_task(job: Job, current: Session, label: str, cached: bool) -> Manifest:
    """Run the job as a task whose Prefect result is its manifest, under the artifact's key.

    Prefect remembers a result even when the folder is gone, so `refresh_cache` says when it is.
    """
    from prefect import task
    from prefect.artifacts import create_table_artifact

    key = f"{job.stage.name}-{job.key}"

    def describe(manifest: Manifest) -> None:
        create_table_artifact(
            key=key.replace("_", "-"), table=_manifest_table(manifest), description=f"{job.stage.name} {job.key}"
        )

    def build() -> str:
        manifest = job.build(current)
        describe(manifest)
        return manifest.as_json()

    as_task = task(
        name=job.stage.name, task_run_name=label, cache_key_fn=lambda *_: key, refresh_cache=not cached,
        persist_result=True, result_serializer="json", tags=[job.stage.name],
    )  # fmt: skip
    state = as_task(build)(return_state=True)
    manifest = Manifest.from_json(state.result())
    if state.name == "Cached":
        describe(manifest)
    return manifest


def _manifest_table(manifest: Manifest) -> list[dict[str, Any]]:
    rows = [
        {"what": "key", "value": manifest.key},
        {"what": "rows", "value": "" if manifest.rows is None else f"{manifest.rows:,}"},
        {"what": "hash", "value": manifest.hash},
        {"what": "seconds", "value": str(manifest.built["seconds"])},
    ]
    rows += [{"what": f"setting {name}", "value": str(value)} for name, value in manifest.settings.items()]
    rows += [{"what": f"input {name}", "value": str(value)} for name, value in manifest.inputs.items()]
    listed = {**manifest.files, **manifest.logs}
    rows += [
        {"what": f"file {name}", "value": f"{file.bytes:,} bytes {file.sha256[:12]}"} for name, file in listed.items()
    ]
    return rows
