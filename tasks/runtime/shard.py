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
    """How many rows of the input it is, which is what the bar counts."""
    files: Sequence[str]
    """What it is written to, below the stage's folder; it is finished when they are all there and recorded."""
    of: Any
    """Which rows, as the stage says it in JSON."""

    def is_finished(self, out: Path) -> bool:
        """Whether it need not be made: its files are there, with the bytes that were written."""
        return all(is_intact(out, file) for file in self.files)


@dataclass(frozen=True)
class ShardJob:
    """What makes the shards of a stage, wherever that is."""

    work: Callable[..., None]
    out: Path
    inputs: Sequence[Any]
    settings: Settings
    what: str
    """What the bar says is being done."""
    unit: str
    """What a row is called."""
    on_gpus: bool = False
    """In `execution.processes` processes, each on a GPU of its own where there are some, not in `execution.workers`."""


def part(number: int) -> str:
    """The name of the Parquet file that a shard of rows becomes, without its ending."""
    return f"part-{number:05d}"


def row_shards(total: int, size: int) -> list[Shard]:
    """Shards of so many rows of a table, the last of fewer, each one Parquet file; `of` is [first row, last row)."""
    spans = [[first, min(first + size, total)] for first in range(0, total, size)]
    return [Shard(n, last - first, [f"{part(n)}.parquet"], [first, last]) for n, (first, last) in enumerate(spans)]


class ProcessFailed(Exception):
    """One of several processes has failed."""


def load_once(make: Callable[..., T], *given: object) -> T:
    """What `make(*given)` gives: a model, say, that this process makes once for all its shards.

    The last thing made is kept, until a stage that makes its shards in this process ends; a process that only makes
    shards keeps it for the next stage.
    """
    key = (make, given, execution())
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = make(*given)
    found: T = _loaded[key]
    return found


def request(job: ShardJob) -> dict[str, Any]:
    """What another process must know to make shards of this job, as JSON."""
    return {
        "call": remote_call.as_json(job.work, job.inputs, job.settings), "out": str(job.out),
        "execution": execution().model_dump(mode="json"),
    }  # fmt: skip


def write_shard_of_request(request: Mapping[str, Any], shard: Shard, done: Callable[[int], object]) -> None:
    """Make a shard that another process requests."""
    out = Path(request["out"])
    with session(Session(Store(out), Execution.model_validate(request["execution"]))):  # a shard uses no store
        remote_call.call(request["call"], out, shard, done)
    record(out, *shard.files)


def run_here(job: ShardJob, shards: Sequence[Shard], done: Callable[[int], object]) -> None:
    """Make the shards one after another in this process, and let go of what was kept for them."""
    try:
        for shard in shards:
            job.work(job.out, shard, done, *job.inputs, settings=job.settings)
            record(job.out, *shard.files)
    finally:
        _loaded.clear()
