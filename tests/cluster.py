"""A Dask cluster of two workers on this host, for a test."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from tests import warm
from tests.warm import ROOT


@dataclass
class Cluster:
    """Where its scheduler listens, what its processes say, and they."""

    address: str
    folder: Path
    scheduler: warm.Command
    workers: list[warm.Command]


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Started and ended with the block; what it says is in the folder. Its workers know nothing of Prefect."""
    folder.mkdir()
    known, started = folder / "scheduler.json", list[warm.Command]()

    def start(what: str, *more: str) -> warm.Command:
        arguments = [what, "--host", "127.0.0.1", "--scheduler-file", str(known), *more]
        quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        log = folder / f"{what}-{len(started)}.log"
        started.append(
            warm.start(*arguments, *quiet, cwd=Path.cwd(), env=environment(), stdout=log, stderr=log, module="dask")
        )
        return started[-1]

    try:
        scheduler = start("scheduler", "--port", "0")
        address = wait_for(lambda: known.exists() and json.loads(known.read_text() or "{}").get("address"))
        alone = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--local-directory", str(folder)]
        processes = [start("worker", *alone) for _ in range(workers)]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=600)
        yield Cluster(address, folder, scheduler, processes)
    finally:
        for process in started:
            process.end()


def environment(**more: str) -> dict[str, str]:
    """That of this process, nothing of Prefect but what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
    return kept | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | quiet | more


def wait_for(what: Callable[[], Any], seconds: float = 600) -> Any:
    """What the function answers once it is true."""
    deadline = time.monotonic() + seconds
    while not (results := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return results
