"""Run a training stage's body in several processes, one a GPU: this module starts them through torchrun, and is what
each of them runs.

All run the same body with the same inputs. The first writes to the stage's folder; each other has a folder of its
own, which is thrown away, but for the training's checkpoints and tokenised texts: these are in the first's, for all.
What they do together is in `tasks.world`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.files import write_atomically
from storage.lock import LeaseLost
from storage.settings import Settings
from storage.store import SCRATCH, Store
from tasks import calls
from tasks.ending import HeldBack, unwinding
from tasks.hosts import BEAT, BEGUN, PATIENCE, Lost, Meeting, meeting_place
from tasks.stage import Execution, Session, execution, session, tell

ALONE_IN_A_STEP = timedelta(hours=2)  # how long processes wait for one that probes or writes a checkpoint
TO_SAVE = 120  # seconds in which processes that are told to end must have ended their step and saved a checkpoint
PARENT = "PRETRIEVE_PARENT"  # the process that a process must not outlive
JOB, KILLED = "job.json", "killed"
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Failed(Exception):
    """A process of several has failed."""


def run_together(
    body: Callable[..., None], out: Path, inputs: Sequence[Any], settings: Settings | None, store: Store
) -> None:
    """Run the body in `execution.processes` processes of each of `execution.hosts`; see that all end together.

    Raises what the first that failed said, where one fails, and `tasks.hosts.Lost` where a host does not answer.
    """
    wanted = execution()
    check_devices(wanted.processes)
    if wanted.hosts > 1:
        meeting_place(wanted)
    with unwinding(), _folder_for(out) as folder:
        meeting = Meeting(folder, wanted) if wanted.hosts > 1 else None
        job = {
            "call": calls.as_json(body, inputs, settings, store.root), "out": calls.below(out, store.root),
            "execution": wanted.model_dump(mode="json"),
        }  # fmt: skip
        write_atomically(folder / JOB, json.dumps(job))
        if meeting:
            _say_where_to_join(store)
        process = start(folder, store, 0)
        try:
            code = _wait(process, meeting)
        except (
            LeaseLost,
            Lost,
            UserError,
        ):  # another may write there now, or a host without which no step ends is gone
            process.kill()
            raise
        finally:
            end(process)
        if code:
            if meeting:
                meeting.ask_who_is_lost()
            _raise(folder, wanted.processes * wanted.hosts, killed=code < 0)


def _wait(process: subprocess.Popen[bytes], meeting: Meeting | None) -> int:
    """The launcher's exit code, when it has ended."""
    while True:
        try:
            return process.wait(BEAT if meeting else None)
        except subprocess.TimeoutExpired:
            if meeting:
                meeting.look()


def _say_where_to_join(store: Store) -> None:
    wanted = execution()
    tell(
        f"  waiting at {wanted.rendezvous} for {wanted.hosts - 1} of {wanted.hosts} hosts; on each of them run: "
        f"pretrieve join --store DIR, where DIR is {store.root} as that host sees it"
    )


@contextlib.contextmanager
def _folder_for(out: Path) -> Iterator[Path]:
    """Where the processes find their job and tell what went wrong; it goes at the end of the block."""
    scratch = out / SCRATCH
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.glob("ranks-*"):  # by a run that was killed
        shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="ranks-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_devices(number: int) -> None:
    """Refuse more processes than there are GPUs for them."""
    import torch

    wanted = execution().device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return
    if wanted not in ("auto", "cuda"):
        raise UserError(f"execution.device: {number} processes take a GPU each; expected auto or cuda, found {wanted}")
    if (found := torch.cuda.device_count()) < number:
        raise UserError(f"execution.processes: expected at most {found}, one for each GPU that is here, found {number}")


def start(folder: Path, store: Store, place: int) -> subprocess.Popen[bytes]:
    """Start this host's launcher of a job, for its place among the hosts; `end` it."""
    command = [sys.executable, "-m", "tasks.ranks", "launch", str(folder), str(store.root), str(place)]
    # Ctrl-C and SIGTERM are for this process alone, which then ends the others.
    return subprocess.Popen(command, env=_environment(), start_new_session=True)


def _environment() -> dict[str, str]:
    """Ours, with as many threads as each process may use; modules are found where we find them, and nowhere else."""
    return os.environ | {
        "OMP_NUM_THREADS": str(execution().threads),
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "PYTHONSAFEPATH": "1",  # else `-m` looks in the working folder first
        PARENT: str(os.getpid()),
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """Have the launcher end its processes, where it still runs; those that train save a checkpoint before."""
    if process.poll() is not None:
        return
    with HeldBack():  # a second SIGTERM must not break this off
        try:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=TO_SAVE + 10)
        finally:
            process.kill()
            process.wait()


def _raise(folder: Path, number: int, *, killed: bool) -> None:
    """Say what the first that failed said; others have only lost it. A process that was killed has said nothing."""
    found = [json.loads(path.read_text()) for path in folder.glob("failed-*.json")]
    if killed or (folder / KILLED).exists():
        raise Failed(f"one of {number} processes was killed from outside, or had no memory left; run again to go on")
    if not found:
        raise Failed(f"torchrun could not start {number} processes; what it said stands above")
    said = min(found, key=lambda each: each["at"])
    if said["user"]:
        raise UserError(said["message"])
    failure = Failed(f"process {said['rank'] + 1} of {number}: {said['message']}")
    failure.add_note(f"there:\n{said['traceback']}")
    raise failure


def launch(folder: Path, store: Path, place: int) -> None:
    """Start the processes of this host with torchrun's launcher, and note whether one was killed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable()  # what went wrong is told by our parent
    os.environ[PARENT] = str(os.getpid())
    wanted = Execution.model_validate(json.loads((folder / JOB).read_text())["execution"])
    meet = _among_hosts(wanted, folder.name, place) if wanted.hosts > 1 else ["--standalone"]
    how = [*meet, f"--nproc-per-node={wanted.processes}", f"--shutdown-timeout={TO_SAVE}"]
    try:
        run.main([*how, "-m", "tasks.ranks", "work", str(folder), str(store)])
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        # With SIGTERM torchrun ends the others when one has failed; where there is nothing else, it came from outside.
        if codes == {-signal.SIGTERM} or any(code < 0 and code != -signal.SIGTERM for code in codes):
            write_atomically(folder / KILLED, "")
        sys.exit(1)
    except SignalException:  # our parent's wish
        sys.exit(1)


def _among_hosts(wanted: Execution, name: str, place: int) -> list[str]:
    """What torchrun is told of the other hosts.

    Places are fixed, so that the first process is on the host that runs the stage, holds its lock and shows how far it
    is. The others find there, at the rendezvous, all that they must know.
    """
    host, _, port = str(wanted.rendezvous).rpartition(":")
    return [
        f"--nnodes={wanted.hosts}", f"--node-rank={place}", f"--rdzv-id={name}", f"--rdzv-conf=timeout={PATIENCE:.0f}",
        f"--master-addr={host.strip('[]')}", f"--master-port={port}",
    ]  # fmt: skip


def work(folder: Path, store: Path) -> None:
    """Be one of the processes."""
    import torch
    import torch.distributed as dist

    job, rank = json.loads((folder / JOB).read_text()), int(os.environ["RANK"])
    on_gpu = job["execution"]["device"] != "cpu" and torch.cuda.is_available()
    try:
        if on_gpu:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", timeout=ALONE_IN_A_STEP, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=ALONE_IN_A_STEP)
        if not rank:
            write_atomically(folder / BEGUN, "")
        with session(Session(Store(store), Execution.model_validate(job["execution"]))):
            _run(job, rank, folder, store)
        dist.barrier()
    except BaseException as error:  # noqa: BLE001  (whatever it is, the others must not wait for this one)
        _tell(folder, rank, error)
        os._exit(1)
    dist.destroy_process_group()


def _run(job: Mapping[str, Any], rank: int, folder: Path, store: Path) -> None:
    out = first = store / job["out"]
    if rank:
        out = folder / f"rank-{rank}"
        (out / SCRATCH).mkdir(parents=True)
        for shared in ("training", "tokens"):
            (first / SCRATCH / shared).mkdir(parents=True, exist_ok=True)
            (out / SCRATCH / shared).symlink_to(first / SCRATCH / shared, target_is_directory=True)
    calls.call(job["call"], out, root=store)


def _tell(folder: Path, rank: int, error: BaseException) -> None:
    """Leave what went wrong where the parent looks."""
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    said = {
        "rank": rank, "at": time.time(), "user": isinstance(error, UserError), "message": message,
        "traceback": "".join(traceback.format_exception(error)),
    }  # fmt: skip
    write_atomically(folder / f"failed-{rank}.json", json.dumps(said))


def _die_with_parent() -> None:
    """End when the process that started this one ends, even by `kill -9`. Linux only: elsewhere nothing is done."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT]):  # it ended before we could ask
            os._exit(1)


if __name__ == "__main__":
    _die_with_parent()
    if sys.argv[1] == "launch":
        launch(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        work(Path(sys.argv[2]), Path(sys.argv[3]))
