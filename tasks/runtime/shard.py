"""A shard of a stage's work, and how one process writes it.

`tasks/runtime/shards.py` says what a stage does to have its work done in shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage.settings import Settings
from storage.store.store import Store
from tasks.runtime import remote_call
from tasks.runtime.leftovers import is_intact, record
from tasks.session import Execution, Session, execution, session

T = TypeVar("T")

_loaded: dict[object, Any] = {}


@dataclass(frozen=True)
class Shard:
    """A share of a stage's work."""

    number: int
    rows: int
    """The number of the input's rows, which the progress bar counts."""
    files: Sequence[str]
    """The files to write, below the stage's folder; the shard is finished when all are there and recorded."""
    of: Any
    """The rows of the shard, in a form that the stage chooses, as JSON."""

    def is_finished(self, out: Path) -> bool:
        """Return whether its files are there with the bytes that were recorded."""
        return all(is_intact(out, file) for file in self.files)


@dataclass(frozen=True)
class ShardTask:
    """A shard to write."""

    out: Path
    """The folder of the stage."""
    shard: Shard
    done: Callable[[int], object]
    """Is called with the number of rows that have been processed since its last call."""


@dataclass(frozen=True)
class ShardJob:
    """The function that writes a stage's shards in any process, and its arguments."""

    work: Callable[..., None]
    """work(task, *inputs, settings=...) writes the shard of a `ShardTask`."""
    out: Path
    inputs: Sequence[Any]
    settings: Settings | None
    what: str
    """The words of the progress bar for the work."""
    unit: str
    """The unit of the rows."""
    on_gpus: bool = False
    """Whether `execution.processes` processes work, each with a GPU if there are any, and not `execution.workers`."""


def part(number: int) -> str:
    """Return the name, without its suffix, of the Parquet file that a shard of rows becomes."""
    return f"part-{number:05d}"


def row_shards(total: int, size: int) -> list[Shard]:
    """Return shards of `size` rows of a table, the last of fewer, each one file; `of` is [first row, last row)."""
    spans = [[first, min(first + size, total)] for first in range(0, total, size)]
    return [Shard(n, last - first, [f"{part(n)}.parquet"], [first, last]) for n, (first, last) in enumerate(spans)]


class ProcessFailed(Exception):
    """One of several processes has failed."""


def load_once(load: Callable[..., T], *arguments: object) -> T:
    """Return `load(*arguments)`, such as a model, which this process loads once for all its shards.

    Only the last result is kept: until the stage ends if its shards are written in this process, else until the
    process of the shards loads something else.
    """
    key = (load, arguments, execution())
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load(*arguments)
    loaded: T = _loaded[key]
    return loaded


def request(job: ShardJob) -> dict[str, Any]:
    """Return what another process must know to write shards of this job, as JSON."""
    return {
        "call": remote_call.as_json(job.work, job.inputs, job.settings), "out": str(job.out),
        "execution": execution().model_dump(mode="json"),
    }  # fmt: skip


def write_shard_of_request(request: Mapping[str, Any], shard: Shard, done: Callable[[int], object]) -> None:
    """Write a shard that another process requests."""
    out = Path(request["out"])
    with session(Session(Store(out), Execution.model_validate(request["execution"]))):  # a shard uses no store
        remote_call.call(request["call"], ShardTask(out, shard, done))
    record(out, *shard.files)


def run_here(job: ShardJob, shards: Sequence[Shard], done: Callable[[int], object]) -> None:
    """Write the shards one after another in this process, then drop what was loaded for them."""
    settings = {} if job.settings is None else {"settings": job.settings}
    try:
        for shard in shards:
            job.work(ShardTask(job.out, shard, done), *job.inputs, **settings)
            record(job.out, *shard.files)
    finally:
        _loaded.clear()
