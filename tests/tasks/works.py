"""Shards for tests, made in processes that import little."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import Settings
from storage.store.store import Store
from tasks.runtime.shard import ShardJob, ShardTask, load_once, row_shards
from tasks.runtime.shards import run_shards
from tasks.session import Execution, Session, session
from tests.cluster import wait_for


class WorkSettings(Settings):
    """What the function does with one shard."""

    number: int = -1
    folder: str = ""
    """A folder for what happens on the way."""
    num_processes: int = 1
    """How many processes must have loaded before the first of them writes."""


def run(
    out: Path, work: Callable[..., None], processes: int = 1, on_gpus: bool = False, dask: str | None = None,
    rows: int = 64, **changes: Any,
) -> None:  # fmt: skip
    """Shards of ten rows each, the last of fewer."""
    execution = Execution(
        workers=1 if on_gpus else processes, threads=1, device="cpu", processes=processes, dask=dask
    )  # fmt: skip
    job = ShardJob(work, out, (), WorkSettings(**changes), what="testing", unit="rows", on_gpus=on_gpus)
    with session(Session(Store(out), execution)):
        run_shards(job, row_shards(rows, 10))


def files(folder: Path) -> dict[str, bytes]:
    """What the shards are written to."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def write(task: ShardTask, *, settings: WorkSettings) -> None:
    """Write the rows' numbers, and count them one by one."""
    for _ in range(task.shard.rows):
        task.done(1)
    write_atomically(task.out / task.shard.files[0], " ".join(map(str, range(*task.shard.of))))


def write_slowly(task: ShardTask, *, settings: WorkSettings) -> None:
    """The same, with a trace of which process makes which shard, and of when it loads what it needs."""
    load_once(load, settings.folder)
    with (Path(settings.folder) / f"{os.getpid()}.made").open("a") as file:
        file.write(f"{task.shard.number}\n")
    wait_for(lambda: len(list(Path(settings.folder).glob("*.loaded"))) >= settings.num_processes)
    time.sleep(0.1)
    write(task, settings=settings)


def load(folder: str) -> str:
    """What takes long: once a process."""
    with (Path(folder) / f"{os.getpid()}.loaded").open("a") as file:
        file.write("loaded\n")
    return folder


def complain(task: ShardTask, *, settings: WorkSettings) -> None:
    """One shard finds that the user can mend something."""
    if task.shard.number == settings.number:
        raise UserError(f"row {task.shard.of[0]}: expected something else")
    write(task, settings=settings)


def vanish(task: ShardTask, *, settings: WorkSettings) -> None:
    """The process that makes one shard is killed."""
    if task.shard.number == settings.number:
        os.kill(os.getpid(), signal.SIGKILL)
    write(task, settings=settings)


def linger(task: ShardTask, *, settings: WorkSettings) -> None:
    """Some shards take for ever."""
    if task.shard.number < settings.number:
        write(task, settings=settings)
    else:
        (Path(settings.folder) / f"{os.getpid()}.pid").touch()
        time.sleep(600)
