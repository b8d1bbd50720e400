"""Stages whose work is done in shards.

A stage lists its shards and names a function of its module, `work(task, *inputs, settings=...)`, which writes the shard
of a `ShardTask` completely or not at all, the same bytes each time, and counts its rows with `task.done`. A shard whose
files are there with the bytes that were recorded (`tasks/runtime/leftovers.py`) is not written again. Shards are
written in this process, in several (`tasks/runtime/process_pool.py`), or on the Dask cluster that `execution.dask`
names (`tasks/runtime/dask_cluster.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tasks.runtime.leftovers import unfinished
from tasks.runtime.progress import bar
from tasks.runtime.shard import Shard, ShardJob, request, run_here
from tasks.session import execution


def run_shards(job: ShardJob, shards: Sequence[Shard]) -> None:
    """Write the shards that are not finished. An error in another process is raised here as it was there."""
    lacking = set(unfinished(job.out, [file for shard in shards for file in shard.files]))
    waiting = [shard for shard in shards if not lacking.isdisjoint(shard.files)]
    if not waiting:
        return
    rows = sum(shard.rows for shard in shards)
    done = rows - sum(shard.rows for shard in waiting)
    words: dict[str, Any] = {"what": job.what, "unit": job.unit, "total": rows, "done": done}
    if execution().dask is not None:
        from tasks.runtime.dask_cluster import run_on_dask

        run_on_dask(request(job) | {"shards": [dataclasses.asdict(shard) for shard in waiting], "bar": words}, job.out)
        return
    processes = execution().workers
    if job.on_gpus:
        from tasks.runtime.device import num_model_processes

        processes = num_model_processes(execution())
    processes = min(processes, len(waiting))
    with bar(**words) as counter:
        if processes > 1:
            from tasks.runtime.process_pool import run_in_processes

            run_in_processes(job, waiting, processes, counter.update)
        else:
            run_here(job, waiting, counter.update)
