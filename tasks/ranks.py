"""Run a training stage's body in several processes, one a GPU: this module starts them through torchrun, and is what
each of them runs.

All run the same body with the same inputs. The first writes to the stage's folder; each other has a folder of its
own, which is thrown away, but for the training's checkpoints: all read those of the first. What they do together is
in `tasks.world`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import Settings
from storage.store import SCRATCH, Store
from tasks.stage import Execution, Session, execution, session

ALONE_IN_A_STEP = timedelta(hours=2)  # how long processes wait for one that probes or writes a checkpoint
KILLED = "killed"
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Failed(Exception):
    """A process of several has failed."""


def run_together(
    body: Callable[..., None], out: Path, inputs: Sequence[Any], settings: Settings | None, store: Store
) -> None:
    """Run the body in `execution.processes` processes; end with what the first that failed said, where one fails."""
    number, folder = execution().processes, Path(tempfile.mkdtemp(prefix="pretrieve-ranks-"))
    try:
        job = {
            "body": _name(body), "out": str(out), "store": str(store.root),
            "inputs": [_as_json(each) for each in inputs],
            "settings": None if settings is None else _settings_as_json(settings),
            "execution": execution().model_dump(mode="json"), "folder": str(folder),
        }  # fmt: skip
        write_atomically(folder / "job.json", json.dumps(job))
        command = [sys.executable, "-m", "tasks.ranks", str(folder / "job.json"), str(number)]
        process = subprocess.Popen(command, env=_environment())
        try:
            code = process.wait()
        finally:
            _end(process)
        if code:
            _raise(folder, number)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Ours, with a thread for each core that a process may use, and this project where Python finds it."""
    project = str(Path(__file__).resolve().parent.parent)
    paths = [project, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {
        "OMP_NUM_THREADS": str(execution().threads), "PYTHONPATH": os.pathsep.join(path for path in paths if path)
    }  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the launcher end its processes, where it still runs."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()
        process.wait()


def _raise(folder: Path, number: int) -> None:
    """Say what the first that failed said; others have only lost it. A process that was killed has said nothing."""
    found = [json.loads(path.read_text()) for path in folder.glob("failed-*.json")]
    if not found or (folder / KILLED).exists():
        raise Failed(f"one of {number} processes was killed from outside, or had no memory left; run again to go on")
    said = min(found, key=lambda each: each["at"])
    if said["user"]:
        raise UserError(said["message"])
    raise Failed(f"process {said['rank'] + 1} of {number}: {said['message']}")


def launch(path: Path, number: int) -> None:
    """Start the processes with torchrun's launcher, and note whether one was killed."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _die_with_parent()
    try:
        run.main(["--standalone", f"--nproc-per-node={number}", "-m", "tasks.ranks", str(path)])
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        if any(code < 0 and code != -signal.SIGTERM for code in codes):  # SIGTERM is how torchrun ends the others
            write_atomically(path.parent / KILLED, "")
        sys.exit(1)


def work(path: Path) -> None:
    """Be one of the processes."""
    import torch
    import torch.distributed as dist

    _die_with_parent()
    job = json.loads(path.read_text())
    on_gpu = job["execution"]["device"] != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=ALONE_IN_A_STEP)
    try:
        with session(Session(Store(Path(job["store"])), Execution.model_validate(job["execution"]))):
            _run(job, dist.get_rank())
        dist.barrier()
    except BaseException as error:  # noqa: BLE001  (whatever it is, the others must not wait for this one)
        _tell(Path(job["folder"]), dist.get_rank(), error)
        os._exit(1)
    dist.destroy_process_group()


def _run(job: Mapping[str, Any], rank: int) -> None:
    out = Path(job["out"])
    if rank:
        out = Path(job["folder"]) / f"rank-{rank}"
        (out / SCRATCH).mkdir(parents=True)
        (Path(job["out"]) / SCRATCH / "training").mkdir(parents=True, exist_ok=True)
        (out / SCRATCH / "training").symlink_to(Path(job["out"]) / SCRATCH / "training", target_is_directory=True)
    body = _named(job["body"])
    keywords = {} if job["settings"] is None else {"settings": _settings_of(job["settings"])}
    getattr(body, "body", body)(out, *(_of_json(each) for each in job["inputs"]), **keywords)


def _tell(folder: Path, rank: int, error: BaseException) -> None:
    """Leave what went wrong where the parent looks."""
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    if not isinstance(error, UserError):
        traceback.print_exception(error)
    said = {"rank": rank, "user": isinstance(error, UserError), "message": message, "at": time.time()}
    write_atomically(folder / f"failed-{rank}.json", json.dumps(said))


def _die_with_parent() -> None:
    """End when the launcher ends, even by `kill -9`. Linux only: elsewhere nothing is done."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _named(name: str) -> Any:
    module, _, place = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in place.split("."):
        found = getattr(found, part)
    return found


def _settings_as_json(settings: Settings) -> dict[str, Any]:
    """The values with the name of their class, and of what it is generic in."""
    made = type(settings).__pydantic_generic_metadata__
    kind, of = made["origin"] or type(settings), [_name(each) for each in made["args"]]
    return {"class": _name(kind), "of": of, "values": settings.model_dump(mode="json", by_alias=True)}


def _settings_of(value: Mapping[str, Any]) -> Settings:
    kind = _named(value["class"])
    if value["of"]:
        kind = kind[tuple(_named(each) for each in value["of"])]
    made: Settings = kind.model_validate(value["values"])
    return made


def _as_json(given: Any) -> Any:
    if isinstance(given, Artifact):
        return {"stage": given.stage, "key": given.key, "path": str(given.path)}
    if isinstance(given, Source):
        return {"key": given.key, "path": str(given.path)}
    return given if given is None else [_as_json(each) for each in given]


def _of_json(value: Any) -> Any:
    if isinstance(value, dict):
        path = Path(value["path"])
        return Artifact(value["stage"], value["key"], path) if "stage" in value else Source(value["key"], path)
    return value if value is None else [_of_json(each) for each in value]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        launch(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        work(Path(sys.argv[1]))
