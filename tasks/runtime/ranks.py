"""Run a training stage's body in several processes, one for each GPU.

All run the same body with the same inputs. The first writes to the stage's folder; each other process has a temporary
folder, except that all share the first one's checkpoints and tokenised texts. `tasks.runtime.distributed` has the
operations between the processes.

On one host the processes meet in a file that only this user can read, and all sockets are bound to loopback. Several
hosts meet in a store that listens at `execution.rendezvous` only, on a network that the user has declared trusted.
Processes exchange tensors, never pickled objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import Settings
from storage.store.locks import LeaseLost
from storage.store.publishing import SCRATCH
from storage.store.store import Store
from tasks.runtime import distributed, remote_call
from tasks.runtime.heartbeat import (
    SECONDS_BETWEEN_BEATS,
    SECONDS_UNTIL_ALL_JOINED,
    STARTED,
    HostLost,
    HostMonitor,
    exposure_warning,
    listen,
    rendezvous_address,
)
from tasks.runtime.rank_processes import KILLED, RENDEZVOUS_FILE, Processes, die_with_parent
from tasks.runtime.shard import ProcessFailed
from tasks.runtime.signals import unwind_on_sigterm
from tasks.runtime.work_folder import CHECKPOINTS, PASSAGE_INDEX, PASSAGE_TEXTS, RECORDS, TOKENS
from tasks.session import Execution, Session, execution, print_line, session

JOB = "job.json"


def run_together(
    body: Callable[..., None], out: Path, inputs: Sequence[Any], settings: Settings | None, store: Store
) -> None:
    """Run the body in `execution.processes` processes of each of `execution.hosts`; see that all end together.

    Raises what the first that failed said, where one fails, and `tasks.runtime.heartbeat.HostLost` where a host does
    not answer and none of its processes has reported an error.
    """
    from tasks.runtime.device import devices_for  # imports torch

    wanted = execution()
    devices_for(wanted.processes)  # what cannot work is refused here, before anything is started
    if wanted.hosts > 1:
        listen(wanted).close()
    with unwind_on_sigterm(), _folder_for(out) as folder:
        monitor = HostMonitor(folder, wanted) if wanted.hosts > 1 else None
        job = {
            "call": remote_call.as_json(body, inputs, settings, store.root), "out": remote_call.below(out, store.root),
            "execution": wanted.model_dump(mode="json"),
        }  # fmt: skip
        write_atomically(folder / JOB, json.dumps(job))
        if monitor:
            _print_how_to_join(store)
        processes = Processes(folder, store, 0, monitor.beat if monitor else None)
        try:
            completed = _wait(processes, monitor)
        except (LeaseLost, HostLost, UserError) as error:
            # Another run may write to the folder now, or a host is gone without which no step ends: nothing is saved.
            processes.kill()
            if isinstance(error, HostLost) and _errors(folder):  # it is gone because a process of it failed
                _raise(folder, wanted.processes * wanted.hosts)
            raise
        finally:
            processes.end()
        if not completed:
            if monitor:
                monitor.wait_until_others_leave()
            _raise(folder, wanted.processes * wanted.hosts)


def _wait(processes: Processes, monitor: HostMonitor | None) -> bool:
    """Wait for the end of the processes; return whether all have completed."""
    while (completed := processes.wait(SECONDS_BETWEEN_BEATS)) is None:
        if monitor:
            monitor.look()
    return completed


def _print_how_to_join(store: Store) -> None:
    wanted = execution()
    print_line(
        f"  waiting at {wanted.rendezvous} for {wanted.hosts - 1} of {wanted.hosts} hosts; on each of them run: "
        f"pretrieve join --store DIR, where DIR is {store.root} as that host sees it"
    )
    print_line(f"  {exposure_warning(wanted)}")


@contextlib.contextmanager
def _folder_for(out: Path) -> Iterator[Path]:
    """Yield the folder where the processes find their job and report errors; it is deleted afterwards."""
    scratch = out / SCRATCH
    scratch.mkdir(parents=True, exist_ok=True)
    for leftover in scratch.glob("ranks-*"):  # by a run that was killed
        shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="ranks-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _errors(folder: Path) -> list[dict[str, Any]]:
    """Return what the processes of all hosts have reported."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("failed-*.json")]


def _raise(folder: Path, number: int) -> None:
    """Raise the error of the process that failed first; the others failed because of it. A killed process has none."""
    errors = _errors(folder)
    if (folder / KILLED).exists():
        raise ProcessFailed(
            f"one of {number} processes was killed from outside, or had no memory left; run again to resume"
        )
    if not errors:
        raise ProcessFailed(f"{number} processes could not be started; their output is above")
    error = min(errors, key=lambda error: error["at"])
    if error["user"]:
        raise UserError(error["message"])
    failure = ProcessFailed(f"process {error['rank'] + 1} of {number}: {error['message']}")
    failure.add_note(f"there:\n{error['traceback']}")
    raise failure


def work(folder: Path, store: Path) -> None:
    """Run the job as one of the processes."""
    import torch
    import torch.distributed as dist

    job, rank = json.loads((folder / JOB).read_text(encoding="utf-8")), int(os.environ["RANK"])
    wanted = Execution.model_validate(job["execution"])
    try:
        device = None
        if wanted.device != "cpu" and torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        size = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device else "gloo", store=_rendezvous_store(wanted, rank, size), rank=rank,
            world_size=size, timeout=distributed.ALONE_IN_A_STEP, device_id=device,
        )  # fmt: skip
        if not rank:
            write_atomically(folder / STARTED, "")
        with session(Session(Store(store), wanted, print_line=partial(tqdm.write, file=sys.stderr))):
            _run(job, rank, folder, store)
        dist.barrier()
    except BaseException as error:  # noqa: BLE001  (whatever it is, the others must not wait for this one)
        _report_error(folder, rank, error)
        os._exit(1)
    dist.destroy_process_group()


def _rendezvous_store(wanted: Execution, rank: int, size: int) -> Any:
    """Return PyTorch's store in which the processes exchange addresses: a file, or over TCP with several hosts."""
    import torch.distributed

    stores: Any = torch.distributed  # its stubs leave them out
    if wanted.hosts == 1:
        return stores.FileStore(os.environ[RENDEZVOUS_FILE], size)
    host, port = rendezvous_address(wanted)
    # Longer than the first host's own patience, which has the better message.
    patience = timedelta(seconds=SECONDS_UNTIL_ALL_JOINED + 60)
    if rank:
        return stores.TCPStore(host, port, size, False, timeout=patience)
    # A socket of ours, since PyTorch would listen on every interface.
    descriptor = listen(wanted).detach()
    return stores.TCPStore(host, port, size, True, timeout=patience, master_listen_fd=descriptor)


def _run(job: Mapping[str, Any], rank: int, folder: Path, store: Path) -> None:
    out = first = store / job["out"]
    if rank:
        out = folder / f"rank-{rank}"
        (out / SCRATCH).mkdir(parents=True)
        for shared in (CHECKPOINTS, TOKENS, RECORDS):
            (first / shared).mkdir(parents=True, exist_ok=True)
            (out / shared).symlink_to(first / shared, target_is_directory=True)
        for written_by_first in (PASSAGE_INDEX, PASSAGE_TEXTS):  # an empty folder would look like a damaged one
            (out / written_by_first).symlink_to(first / written_by_first, target_is_directory=True)
    remote_call.call(job["call"], out, root=store)


def _report_error(folder: Path, rank: int, error: BaseException) -> None:
    """Write the error where `_raise` of the parent process reads it."""
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    content = {
        "rank": rank, "at": time.time(), "user": isinstance(error, UserError), "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }  # fmt: skip
    if folder.is_dir():  # else the job is over
        write_atomically(folder / f"failed-{rank}.json", json.dumps(content))


if __name__ == "__main__":
    die_with_parent()
    work(Path(sys.argv[1]), Path(sys.argv[2]))
