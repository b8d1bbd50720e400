"""Shards in several processes of this host.

A process lasts no longer than the stage, whatever ends that: it ends when a pipe to it closes, and the kernel closes
the pipe of a parent that is killed. It leaves Ctrl-C, SIGTERM and SIGHUP to its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from tasks.runtime.shard import ProcessFailed, Shard, ShardJob, request, write_shard_of_request
from tasks.runtime.worker_process import prepare_worker

SHARDS_AHEAD = 2  # for each process, the one that it makes among them
SECONDS_BETWEEN_LOOKS = 0.5

_own: dict[str, Any] = {}
"""In a process of the pool, what it knows."""


def run_in_processes(job: ShardJob, shards: Sequence[Shard], processes: int, done: Callable[[int], object]) -> None:
    """Write the shards in `processes` processes; the first error ends them all.

    They are spawned, since a fork would copy the locks of threads.
    """
    context = get_context("spawn")
    alive, ours = context.Pipe(duplex=False)
    number, rows = context.Value("i", 0), context.Value("q", 0)
    arguments = (_requests(job, processes), alive, number, rows)
    pool = ProcessPoolExecutor(processes, context, _begin, arguments)
    try:
        remaining, waiting, reported = iter(shards), set[Future[None]](), 0
        while True:
            waiting |= {
                pool.submit(_make, shard) for shard in islice(remaining, SHARDS_AHEAD * processes - len(waiting))
            }
            if not waiting:
                break
            finished, waiting = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            for future in finished:
                future.result()
            passed = rows.get_obj().value  # without its lock, which a process that is killed may hold
            done(passed - reported)
            reported = passed
    except BrokenProcessPool as error:
        raise ProcessFailed(
            f"one of {processes} processes was killed from outside, or had no memory left; run again to resume"
        ) from error
    finally:
        ours.close()  # now they end, whatever they do
        pool.shutdown(cancel_futures=True)
        alive.close()


def _requests(job: ShardJob, processes: int) -> list[dict[str, Any]]:
    """Return the request of each process: equal, except that each has its own GPU where GPUs are used."""
    requested = request(job)
    if not job.on_gpus:  # the processes are the parallelism
        return [requested | {"execution": requested["execution"] | {"threads": 1}}] * processes
    from tasks.runtime.device import devices_for

    return [requested | {"execution": requested["execution"] | {"device": device}} for device in devices_for(processes)]


def _begin(requests: Sequence[Mapping[str, Any]], alive: Connection, number: Any, rows: Any) -> None:
    # Before the lock is taken, which another process that is killed may hold.
    prepare_worker(alive, requests[0]["execution"]["threads"])
    with number.get_lock():
        _own.update(request=requests[number.value], rows=rows)
        number.value += 1


def _make(shard: Shard) -> None:
    write_shard_of_request(_own["request"], shard, _done)


def _done(number: int) -> None:
    rows = _own["rows"]
    with rows.get_lock():
        rows.value += number
