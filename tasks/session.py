"""The context in which stages are called: the store, the execution settings, and the stages done so far."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from storage.settings import Settings
from storage.store.run_notes import NotedRun
from storage.store.store import Store
from tasks.job import Job
from tasks.machine import free_memory, num_cores

MEMORY_OF_WORKER = 1 << 30  # bytes that a process of a CPU stage is assumed to need


def default_workers() -> int:
    """Return one worker for each core that this process may use, as far as the free memory suffices."""
    memory = free_memory()
    return max(1, num_cores() if memory is None else min(num_cores(), memory // MEMORY_OF_WORKER))


class Execution(Settings):
    """The settings for running stages. None of them is in a key.

    Defaults depend on the machine only where that changes no byte of an artifact. `threads` and `processes` change the
    order in which a training adds floating-point numbers; a long training makes the differences larger
    (docs/operate/sizing.md). Their defaults are the same anywhere. `device`, and more processes than a batch has
    chunks, also draw other dropout, so that a training differs as with another seed.
    """

    workers: int = Field(default_factory=default_workers, gt=0)
    """Processes of stages on the CPU, such as splitting and mining; by default one a core, if memory suffices."""
    threads: int = Field(default=2, gt=0)
    """Threads of PyTorch, FAISS and exact scores in each process; with GPUs, scores take a GPU's share of the cores."""
    batch_workers: int | None = Field(default=None, ge=0)
    """Processes that build the batches of pre-training for each process that trains; by default up to 4 with a GPU."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    processes: int = Field(default=1, gt=0)
    """Processes of each host that train together, each on its own GPU; 1 encodes and generates on all GPUs or cores."""
    hosts: int = Field(default=1, gt=0)
    """Hosts that train together; on all but the one that runs the stage runs `pretrieve join`."""
    rendezvous: str | None = None
    """HOST:PORT of the host that runs the stage, where it meets the others; null where there is one host."""
    trusted_network: bool = False
    """Whether only trusted machines reach the hosts' ports, which have no passwords; several hosts need it."""
    dask: str | None = None
    """Address of a Dask scheduler whose workers write the shards of all stages; null for processes of ours."""

    compile: bool = False
    """Whether trainings compile BERT's layers and the decoders' (`torch.compile`); needs a C++ compiler."""
    log_steps: int = Field(default=1, gt=0)
    """Training steps between two lines of the log, for which a GPU is waited for; divergence is noticed then."""

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
            raise ValueError("expected auto, cpu, cuda or cuda:N")
        return device

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
    """The seconds of building it, in this run or, where it was cached, in the run that built it."""
    rows: int | None
    inputs: list[Any]
    """References of its inputs."""
    built: Mapping[str, Any] = field(default_factory=dict)
    """Time, machine and cost of the build, from its manifest; {} where nothing is built yet."""

    @property
    def reference(self) -> str:
        """The name by which other stages refer to its artifact."""
        return f"{self.stage}/{self.key}"


@dataclass
class Session:
    """The store of a run, the settings for running stages, and the stages that are done."""

    store: Store
    execution: Execution = field(default_factory=Execution)
    planning: bool = False
    """Only work out keys and look what is there; build nothing."""
    print_line: Callable[[str], None] = lambda line: None
    note: NotedRun | None = None
    """The run's note, which names every artifact before the store is looked at; None where nothing is noted."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Stages by `<stage>/<key>`, in the order in which they were first called."""
    done: dict[str, Done] = field(default_factory=dict)
    """The state of each stage."""
    num_stages: int | None = None
    """The number of stages of the run, for its progress; None where it is not known."""

    def progress(self) -> str:
        """Return the position of the stage that begins, in words: ` [12/40]`.

        It is empty where the number is not known, and for what follows the planned stages.
        """
        position = len(self.done) + 1
        return "" if self.num_stages is None or position > self.num_stages else f" [{position}/{self.num_stages}]"


_session: contextvars.ContextVar[Session] = contextvars.ContextVar("session")
_round: contextvars.ContextVar[str] = contextvars.ContextVar("round", default="")


@contextlib.contextmanager
def session(current: Session) -> Iterator[Session]:
    """Make `current` the session of the stages that are called in the block."""
    token = _session.set(current)
    try:
        yield current
    finally:
        _session.reset(token)


@contextlib.contextmanager
def in_round(name: str) -> Iterator[None]:
    """List the stages that are called in the block under the name of a round."""
    token = _round.set(name)
    try:
        yield
    finally:
        _round.reset(token)


def execution() -> Execution:
    """Return the execution settings of the current session."""
    return _session.get().execution


def store() -> Store:
    """Return the store of the current session."""
    return _session.get().store


def print_line(line: str) -> None:
    """Print a line to the terminal of the current session's run; do nothing without a session."""
    if current := _session.get(None):
        current.print_line(line)


def current_session() -> Session:
    """Return the session of the block that this is called in."""
    return _session.get()


def current_round() -> str:
    """Return the name of the round that stages called now are listed under; empty outside of rounds."""
    return _round.get()
