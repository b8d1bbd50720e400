"""Batches ahead of time: others build the next steps' batches while the device computes.

A batch depends on its step only, so it is the same wherever it is built. Worker processes are started afresh, since a
fork would copy threads' locks. They end when a pipe to them closes, which the kernel does for a parent that is killed,
and they leave Ctrl-C, SIGTERM and SIGHUP to their parent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from models.objective import Batch
from storage.errors import UserError
from tasks.machine import num_cores
from tasks.runtime.shard import ProcessFailed
from tasks.runtime.worker_process import prepare_worker
from tasks.session import execution

BATCHES_AHEAD = 2  # for each worker
MOST_WORKERS = 4  # a process of a training, by default
BatchOf = Callable[[int], Batch]


@contextlib.contextmanager
def prefetch(batch_of: BatchOf, steps: range, *, workers: int, pinned: bool = False) -> Iterator[Iterator[Batch]]:
    """Give the batches of steps in their order, built ahead of time by worker processes, or when they are due.

    Batches are in pinned memory if `pinned`. An error of `batch_of` is raised at its step. ProcessFailed is raised in
    the block if a worker was killed.
    """
    if not workers:
        yield map(batch_of, steps)
        return
    context = get_context("spawn")
    alive, parent = context.Pipe(duplex=False)
    loader: DataLoader[Any] = DataLoader(
        StepsOf(batch_of), batch_size=None, sampler=steps, num_workers=workers, collate_fn=_unchanged,
        pin_memory=pinned, worker_init_fn=partial(_begin, alive), multiprocessing_context=context,
        prefetch_factor=BATCHES_AHEAD, generator=torch.Generator(),  # so that the global one is left as it is
    )  # fmt: skip
    batches: Any = iter(loader)
    try:
        yield map(_raise_failure, batches)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ProcessFailed(
            f"one of {workers} processes that build batches was killed from outside, or had no memory left; "
            "run again to resume from the last checkpoint"
        ) from error
    finally:
        batches._shutdown_workers()  # before their pipe is closed, whose end PyTorch would take for a failure
        parent.close()
        alive.close()


def num_batch_workers(device: torch.device) -> int:
    """Return `execution.batch_workers`; by default none on a CPU, on a GPU up to 4 of the cores."""
    if (wanted := execution().batch_workers) is not None:
        return wanted
    return 0 if device.type == "cpu" else max(1, min(MOST_WORKERS, num_cores() // execution().processes - 1))


@dataclass(frozen=True)
class Failure:
    """An error that the user can fix, on its way from a worker."""

    message: str


@dataclass(frozen=True)
class StepsOf(Dataset[Any]):
    """The batches of a training by step."""

    batch_of: BatchOf

    def __getitem__(self, step: int) -> Batch | Failure:
        try:
            return self.batch_of(step)
        except UserError as error:
            return Failure(str(error))


def _begin(alive: Connection, worker: int) -> None:
    prepare_worker(alive, threads=1)


def _raise_failure(batch: Batch | Failure) -> Batch:
    if isinstance(batch, Failure):
        raise UserError(batch.message)
    return batch


def _unchanged(batch: Any) -> Any:
    return batch
