"""The stage mechanism: a function that fills a folder becomes a step that is never done twice.

`@stage(version=1, table=Passages)` turns `body(out, *inputs, settings)` into a call that returns an
`Artifact[Passages]`: found in the store by its key, or built, one builder at a time, resuming what an earlier attempt
left. Inside a Prefect flow the call is a task of that run with the same key; where Prefect is not installed or no flow
runs, it is a plain function with the same artifacts. Raise `version` when its meaning changes: code is not hashed.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, model_validator

from storage.artifact import Artifact, File, Manifest, Source, hash_of, key_of
from storage.files import full_disk_in_words
from storage.rows import num_rows
from storage.settings import Settings
from storage.store.run_notes import NotedRun
from storage.store.store import Store
from storage.tables import Table
from tasks.runtime.energy import Meter
from tasks.runtime.environment import Spent, cpu_seconds, described
from tasks.runtime.prefect_progress import in_a_flow

T = TypeVar("T", bound=Table)
Input = Artifact[Any] | Source | Sequence[Artifact[Any]] | None


class Execution(Settings):
    """How to run, never what comes out: no value here is in a key."""

    workers: int = Field(default=2, gt=0)
    """Processes that split the corpus and mine."""
    threads: int = Field(default=2, gt=0)
    """Threads of PyTorch and FAISS."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    processes: int = Field(default=1, gt=0)
    """Processes of each host that use one model together, each on its own GPU: to train, encode or generate queries."""
    hosts: int = Field(default=1, gt=0)
    """Hosts that train together; on all but the one that runs the stage runs `pretrieve join`."""
    rendezvous: str | None = None
    """HOST:PORT of the host that runs the stage, where it meets the others; null where there is one host."""
    trusted_network: bool = False
    """Whether only trusted machines reach the hosts' ports, which have no passwords; several hosts need it."""
    dask: str | None = None
    """Address of a Dask scheduler whose workers split, write queries, encode and mine; null for processes of ours."""

    @model_validator(mode="after")
    def _several_hosts_need_trust(self) -> Self:
        if self.hosts > 1 and not self.trusted_network:
            raise ValueError("several hosts train without passwords or encryption: set trusted_network if that is safe")
        return self


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
    built: Mapping[str, Any] = field(default_factory=dict)
    """What its manifest says of when, where and at what cost it was built; {} where nothing is there yet."""


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
    note: NotedRun | None = None
    """The run's note, which names every artifact before the store is looked at; None where nothing is noted."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Stages by `<stage>/<key>`, in the order in which they were first called."""
    done: dict[str, Done] = field(default_factory=dict)
    """What is known of each."""


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


def store() -> Store:
    """The store of the current session."""
    return _session.get().store


def tell(line: str) -> None:
    """Print a line to the terminal of the current session's run; nothing where a stage's body runs without one."""
    if current := _session.get(None):
        current.tell(line)


def stage(
    *, version: int, table: type[T], trains: bool = False, gpu: bool | Callable[[Any], bool] = False
) -> Callable[[Callable[..., None]], Stage[T]]:
    """Turn `body(out, *inputs, settings=...)` into a stage of one `table`.

    `trains`: in several processes where the run says so. `gpu`: whether workers with a GPU run it; a function tells it
    of the settings.
    """
    return lambda body: Stage(body, version, table, trains, gpu if callable(gpu) else lambda settings: gpu)


class Stage(Generic[T]):
    """A step of the chain; call it with its inputs, get its artifact."""

    def __init__(
        self, body: Callable[..., None], version: int, table: type[T], trains: bool, gpu: Callable[[Any], bool]
    ) -> None:
        update_wrapper(self, body)
        self.body, self.version, self.table, self.trains, self.gpu = body, version, table, trains, gpu
        self.name: str = body.__name__
        self.parameters = [name for name in inspect.signature(body).parameters if name not in ("out", "settings")]

    def __call__(self, *inputs: Input, settings: Settings | None = None) -> Artifact[T]:
        """The artifact of these inputs and settings: from the store if it is whole there, else built."""
        job, current = Job(self, inputs, settings, _round.get()), _session.get()
        if job.reference not in current.done:
            if current.note:
                current.note.uses([job.reference])
            current.jobs[job.reference] = job
            current.done[job.reference] = job.looked_up(current) if current.planning else job.run(current)
            if job.key == current.last:
                raise Stopped
        return Artifact(self.name, job.key, current.store.folder(self.name, job.key))


class Job:
    """One call of a stage: what it would make is known by its key before anything is built."""

    def __init__(
        self, made_by: Stage[Any], inputs: Sequence[Input], settings: Settings | None, in_round: str = ""
    ) -> None:
        if len(inputs) != len(made_by.parameters):
            raise TypeError(f"{made_by.name} takes {made_by.parameters}, got {len(inputs)} inputs")
        self.stage, self.inputs, self.settings, self.round = made_by, inputs, settings, in_round
        self.values: dict[str, Any] = settings.model_dump(mode="json") if settings else {}
        self.references = {name: _reference(each) for name, each in zip(made_by.parameters, inputs, strict=True)}
        self.key = key_of(made_by.name, made_by.version, self.values, self.references)

    @property
    def reference(self) -> str:
        """What other stages call its artifact."""
        return f"{self.stage.name}/{self.key}"

    @property
    def label(self) -> str:
        """Stage, round and the beginning of the key, for people."""
        return f"{self.stage.name}{f' ({self.round})' if self.round else ''} {self.key[:8]}"

    @property
    def needs_gpu(self) -> bool:
        """Whether workers with a GPU run it."""
        return self.stage.gpu(self.settings)

    def needs(self) -> list[str]:
        """References of the artifacts that must be whole before it can be built."""
        return [artifact.reference for artifact in self._artifacts()]

    def run(self, current: Session) -> Done:
        """Build it, or find it whole; as a task of the flow that runs, if one does."""
        manifest = current.store.manifest(self.stage.name, self.key)
        cached = manifest is not None
        if not cached:
            current.tell(f"{self.label} …")
        if in_a_flow():
            from tasks.runtime.prefect_task import run_as_task

            return self.told(current, run_as_task(self, current, cached), cached)
        return self.told(current, manifest or self.build(current), cached)

    def looked_up(self, current: Session) -> Done:
        """What the store has of it."""
        return self._done(manifest := current.store.manifest(self.stage.name, self.key), manifest is not None)

    def told(self, current: Session, manifest: Manifest, cached: bool) -> Done:
        """Say that it is whole."""
        rows = f", {manifest.rows:,} rows" if manifest.rows is not None else ""
        how = "cached" if cached else f"built in {manifest.built['seconds']:.1f} s"
        current.tell(f"{self.label}: {how}{rows}")
        return self._done(manifest, cached)

    def _done(self, manifest: Manifest | None, cached: bool) -> Done:
        return Done(
            self.stage.name, self.round, self.key, cached,
            float(manifest.built["seconds"]) if manifest else 0.0, manifest.rows if manifest else None,
            list(self.references.values()), manifest.built if manifest else {},
        )  # fmt: skip

    def build(self, current: Session) -> Manifest:
        """Make the artifact, or find that another process has made it meanwhile."""
        name, store = self.stage.name, current.store
        with store.lock(name, self.key, lambda: current.tell(f"{name} {self.key[:8]}: another run builds it; waiting")):
            if manifest := store.manifest(name, self.key):
                return manifest
            if (folder := store.folder(name, self.key)).exists() and (damage := store.quarantine(folder)):
                current.tell(f"{self.label}: damaged, so it is built again: {damage.in_one_line()}")
            for artifact in self._artifacts():
                store.check(artifact)
            started, cpu = time.monotonic(), cpu_seconds()
            work = store.begin(name, self.key)
            with full_disk_in_words(work):
                with Meter() as meter:
                    self._fill(work, store)
                spent = Spent(started, cpu, meter.joules)
                return store.publish(name, self.key, lambda files, logs: self._manifest(files, logs, spent))

    def _fill(self, work: Path, store: Store) -> None:
        """Run the stage's body, in several processes where it trains and the run says so."""
        if self.stage.trains and execution().processes * execution().hosts > 1:
            from tasks.runtime.ranks import run_together

            run_together(self.stage.body, work, self.inputs, self.settings, store)
        else:
            self.stage.body(work, *self.inputs, **({"settings": self.settings} if self.settings else {}))

    def _artifacts(self) -> Iterator[Artifact[Any]]:
        for each in self.inputs:
            for one in each if isinstance(each, Sequence) else [each]:
                if isinstance(one, Artifact):
                    yield one

    def _manifest(self, files: dict[str, File], logs: dict[str, File], spent: Spent) -> Manifest:
        made_by = self.stage
        rows = num_rows(_session.get().store.work(made_by.name, self.key)) if made_by.table.schema else None
        built = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - spent.started, 3),
            "cpu_seconds": round(cpu_seconds() - spent.cpu, 3),
            "energy_joules": {part: round(joules, 1) for part, joules in spent.energy.items()},
            **described(execution()),
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
