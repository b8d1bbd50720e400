"""However a worker or its process dies, the run ends by itself, a retry goes on, and no stage runs twice at once."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from flows.prefect_server.automations import SILENT
from flows.prefect_server.worker import ALIVE, ATTACHED
from flows.prefect_server.worker_death import DIED
from tests.services.lab import Lab, long_training, process_of
from tests.services.servers import run_of, wait_for

MINUTES_TO_CRASH = 3.0  # a heartbeat every 30 s, three of which may be missing, and a busy machine
KINDS = ["process", "worker", "both", "stopped"]


def worker_of(child: dict[str, Any], lab: Lab) -> psutil.Process:
    """The worker that started a child's process."""
    parents = {parent.pid for parent in process_of(child).parents()}
    [pid] = [worker.pid for worker in lab.workers.values() if worker.pid in parents]
    return psutil.Process(pid)


def trains(process: psutil.Process) -> bool:
    """Whether the log of a training is open in a process."""
    return any(Path(file.path).name == "metrics.jsonl" for file in process.open_files())


def kill(kind: str, process: psutil.Process, worker: psutil.Process) -> None:
    """Die in one of four ways."""
    if kind == "stopped":  # SIGTERM, as `docker stop` and systemd have it: the worker takes its run with it
        worker.send_signal(signal.SIGTERM)
        assert not psutil.wait_procs([worker, process], timeout=300)[1]
        return
    for victim in [process] if kind == "process" else [worker] if kind == "worker" else [worker, process]:
        os.kill(victim.pid, signal.SIGKILL)


def test_a_run_whose_worker_died_ends_and_resumes_when_retried(lab: Lab) -> None:
    for number in range(len(KINDS)):
        lab.work("gpu", f"gpu-{number}")
    runs = {kind: lab.ask("train_generator", *long_training(20_000, seed)) for seed, kind in enumerate(KINDS)}
    children = {kind: lab.endless_child("train_generator", run) for kind, run in runs.items()}

    for child in children.values():
        assert process_of(child).is_running()
    for kind, child in children.items():
        kill(kind, process_of(child), worker_of(child, lab))

    for kind, child in children.items():
        assert lab.end(child["id"], MINUTES_TO_CRASH)["state_name"] == "Crashed", kind
        assert lab.end(runs[kind], 1)["state_name"] == "Failed"
    assert DIED in lab.logs(children["worker"]["id"])  # it did not fail at the next line that it wrote
    assert list(lab.work_folder(children["worker"]).glob("scratch/training/*"))

    lab.work("gpu", "gpu-again", limit=len(KINDS))
    for run in runs.values():
        lab.retry(run)
    for kind, run in runs.items():
        again = lab.endless_child("train_generator", run)
        assert again["id"] == children[kind]["id"]  # the same child, resumed
        assert again["run_count"] == 2
    assert not (lab.store / ".damaged").exists()  # where a second build of an artifact would have put the first


def test_a_retry_waits_for_an_orphaned_run(lab: Lab) -> None:
    """A run that the server believes to be dead may be alive: the lock keeps a second one from its work."""
    lab.work("gpu", "gpu-orphan")
    lab.work("gpu", "gpu-second")
    run = lab.ask("train_generator", *long_training(1_000_000, seed=99))
    child = lab.endless_child("train_generator", run)
    orphan, worker = process_of(child), worker_of(child, lab)

    worker.suspend()  # it does not hear of the retry: Prefect 3.8's ends when it is given a run that it has
    lab.set_state(child["id"], "CRASHED")  # as an automation does that hears no heartbeat
    lab.end(run, 2)
    lab.retry(run)
    wait_for(lambda: "another run builds it; waiting" in lab.logs(child["id"]), 4, "the second says that it waits")

    second = process_of(run_of(lab.url, child["id"]))
    before = lab.steps(child)
    assert second.pid != orphan.pid
    wait_for(lambda: lab.steps(child) > before, 2, "the first goes on")
    assert trains(orphan)
    assert not trains(second)
    orphan.kill()
    worker.kill()
    # Not by the steps: where the orphan has just saved a checkpoint, the second never has fewer than the orphan had.
    wait_for(lambda: trains(second), 2, "the second begins")
    begun = lab.steps(child)
    wait_for(lambda: lab.steps(child) > begun, 2, "the second trains")
    lab.cancel(run)
    assert lab.end(child["id"], 3)["state_name"] == "Cancelled"
    assert not (lab.store / ".damaged").exists()


def test_a_run_is_alive_while_its_process_is(lab: Lab) -> None:
    worker = lab.work("gpu", "gpu-alive")
    run = lab.ask("train_generator", *long_training(1_000_000, seed=98))
    child = lab.endless_child("train_generator", run)
    process = process_of(child)

    # Paused, it sends nothing itself: its worker does.
    process.suspend()
    paused = datetime.now(UTC)
    wait_for(lambda: lab.heartbeats(child["id"], paused) >= 2, 2, "the worker sends heartbeats")
    assert lab.state(child["id"]) == "Running"

    # An automation on a server that was too busy to receive them calls it Crashed: it is taken back.
    lab.set_state(child["id"], "CRASHED", SILENT)
    wait_for(lambda: ALIVE in lab.logs(child["id"]), 2, "the run is taken back")
    wait_for(lambda: lab.state(child["id"]) == "Running", 1, "it is Running")
    process.resume()

    # An operator calls it Crashed, and retries the run: the retry attaches to the process, and nothing is lost.
    lab.set_state(child["id"], "CRASHED")
    lab.end(run, 2)
    before = lab.steps(child)
    lab.retry(run)
    wait_for(lambda: ATTACHED in lab.logs(child["id"]), 3, "the retry attaches to the process")
    wait_for(lambda: lab.state(child["id"]) == "Running" and lab.state(run) == "Running", 1, "both are Running")
    assert process_of(run_of(lab.url, child["id"])) == process
    wait_for(lambda: lab.steps(child) > before, 2, "the training continues")
    assert worker.alive()

    lab.cancel(run)
    assert lab.end(child["id"], 3)["state_name"] == "Cancelled"
    assert not process.is_running()
    assert lab.steps(child) > before
