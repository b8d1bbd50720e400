"""Shards on a Dask cluster, through prefect-dask, where `execution.dask` names its scheduler.

Workers must see the store and the data at the same paths as this process, and have the same packages: distributed
warns of other versions of its own and of Python. They only write files and rename them; this process holds the lock.

The request is in the stage's folder as JSON. Neighbouring shards are a group, which a worker builds one after another.
Before each shard it checks that the request is still there, so the groups of an interrupted run end soon, also where
this process was killed and the next run withdraws its requests. When a worker dies, Dask gives its group to another,
which skips what is finished.

Where a flow runs and a server is named, the groups are task runs of a flow of their own. No other process can reach the
server embedded in a run, so there they are plain Dask tasks.

Submitting and retrying are Dask's and prefect-dask's. prefect-dask's task runner itself needs a flow whose context can
be sent to workers, while a stage also runs without a flow, and its context holds the open store. Neither ends groups
that are already running when the process that submitted them is killed.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from storage.errors import UserError
from storage.files import write_atomically
from storage.store.publishing import SCRATCH
from tasks.runtime.prefect_task import EMBEDDED
from tasks.runtime.progress import bar
from tasks.runtime.shard import ProcessFailed, Shard, write_shard_of_request

GROUPS = 50  # per stage at most: the number of its task runs, and of the workers that it keeps busy
SECONDS_TO_CONNECT, SECONDS_TO_CLOSE = 60, 5  # a busy scheduler takes its time
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_UNTIL_FILES_SHOW = 90  # a shared file system may show what another host has written only after a minute

_one_at_a_time = threading.Lock()  # a worker's threads share a model


def run_on_dask(request: Mapping[str, Any], out: Path) -> None:
    """Build the shards of a request, which has the fields of `tasks.runtime.shards.request`, `shards` and `bar`.

    Raises `UserError` where no scheduler answers or a worker does not see the folder, `ProcessFailed` where the cluster
    or several workers of a group were lost, and the error of a shard as it was raised.
    """
    scratch = out / SCRATCH
    for leftover in scratch.glob("dask-*"):  # by a run that was killed: its groups end
        shutil.rmtree(leftover)
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="dask-"))
    try:
        write_atomically(folder / "order.json", json.dumps(request))
        if _shown_by_a_server():
            _as_flow(str(folder / "order.json"), out.name)
        else:
            make_shards(str(folder / "order.json"))
    finally:
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):  # others have something there
            scratch.rmdir()


def make_shards(order: str) -> None:
    """Have the cluster make the shards of an order, and wait for them."""
    from distributed import KilledWorker
    from distributed.client import ClosedClientError

    request = json.loads(Path(order).read_text(encoding="utf-8"))
    address, out, shards = request["execution"]["dask"], Path(request["out"]), _shards(request)
    number = min(len(shards), GROUPS)
    groups = [(len(shards) * n // number, len(shards) * (n + 1) // number) for n in range(number)]
    with _client(address) as client, bar(**request["bar"]) as counter:
        futures = [client.submit(_group_maker(first, last), order, first, last) for first, last in groups]
        try:
            unfinished = [
                (future, deque(shards[first:last])) for future, (first, last) in zip(futures, groups, strict=True)
            ]
            while unfinished := [group for group in unfinished if not _has_ended(*group, out, counter)]:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        except CancelledError as error:
            raise ProcessFailed(f"the Dask scheduler at {address} was lost; run again to resume") from error
        except KilledWorker as error:
            raise ProcessFailed(
                "a group of shards has lost every Dask worker that took it; their logs say why (often they have too "
                "little memory); run again to resume"
            ) from error
        finally:
            with contextlib.suppress(ClosedClientError):  # the client has given up a scheduler that was lost
                client.cancel(futures)
    _wait_for(out, shards)


def _has_ended(future: Any, waiting: deque[Shard], out: Path, counter: tqdm[None]) -> bool:
    """Count the shards of a group that are new, and raise the group's error if it has one."""
    has_ended: bool = future.done()  # read once: a group that fails between two calls would be missed
    while waiting and waiting[0].is_finished(out):
        counter.update(waiting.popleft().rows)
    if has_ended:
        future.result()
    return has_ended


def make_group(order: str, first: int, last: int) -> None:
    """Write the unfinished shards of an order as a worker, until the order is withdrawn."""
    out = Path(order).parents[2]  # OUT/scratch/dask-*/order.json
    if not out.is_dir():
        raise UserError(
            f"{out}: not there on {socket.gethostname()}; every Dask worker must see the store and the data at the "
            "same paths as the process that runs the stage"
        )
    try:
        request = json.loads(Path(order).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    for shard in _shards(request)[first:last]:
        with _one_at_a_time:
            if not Path(order).exists():
                return
            if not shard.is_finished(out):
                write_shard_of_request(request, shard, lambda rows: None)


def _shards(request: Mapping[str, Any]) -> list[Shard]:
    return [Shard(**shard) for shard in request["shards"]]


def _shown_by_a_server() -> bool:
    if "prefect" not in sys.modules:  # a flow that runs has imported it
        return False
    from prefect.context import FlowRunContext
    from prefect.settings import get_current_settings

    is_named = EMBEDDED not in os.environ and get_current_settings().api.url is not None
    return is_named and FlowRunContext.get() is not None


def _as_flow(order: str, name: str) -> None:
    """Write the shards of an order in a separate flow, whose context is sent to the workers with each task.

    The context of the stage's task cannot be sent, since it holds the session.
    """
    from prefect import flow
    from prefect.context import TaskRunContext

    context, of_task = contextvars.copy_context(), TaskRunContext.__var__
    context.run(cast(contextvars.ContextVar[Any], of_task).set, None)
    stage, _, key = name.rpartition("-")
    shown = flow(name="shards", flow_run_name=f"shards of {stage} {key[:8]}", persist_result=False)
    context.run(shown(make_shards), order)


def _group_maker(first: int, last: int) -> Any:
    """Return `make_group`, as a task where a server shows it."""
    if not _shown_by_a_server():
        return make_group
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    named = task(name="shards", task_run_name=f"shards {first} to {last - 1}", cache_policy=NO_CACHE)
    return named(make_group)


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler."""
    from distributed.comm.addressing import resolve_address
    from prefect_dask.client import PrefectDaskClient

    connect: Any = PrefectDaskClient
    try:
        resolve_address(address)  # refuses at once what connecting would try for ever
        client = connect(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"execution.dask: no Dask scheduler answers at {address} ({error}); start one with `dask scheduler`, or set"
            " execution.dask to null"
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(TimeoutError):  # what the block has returned or raised counts
            client.close(timeout=SECONDS_TO_CLOSE)


def _wait_for(out: Path, shards: Sequence[Shard]) -> None:
    """Wait until this host sees what others have written."""
    deadline = time.monotonic() + SECONDS_UNTIL_FILES_SHOW
    while True:
        is_last_look = time.monotonic() > deadline  # before the look, which takes long for many shards
        if not (unseen := [shard for shard in shards if not shard.is_finished(out)]):
            return
        if is_last_look:
            raise UserError(
                f"{out / unseen[0].files[0]}: a Dask worker has reported it complete, but this host does not see it; "
                "workers must see the store at the same path as the process that runs the stage"
            )
        for folder in {(out / file).parent for file in unseen[0].files}:
            with contextlib.suppress(OSError):
                list(folder.iterdir())  # which asks the file server
        time.sleep(SECONDS_BETWEEN_LOOKS)
