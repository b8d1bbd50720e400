"""Batches built ahead of time are those of their steps, in their order, whoever builds them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from storage.errors import UserError
from tasks.runtime.ahead import made_ahead
from tasks.runtime.shard import ProcessFailed
from tasks.session import Execution, Session, session
from tasks.training.prefetch import num_batch_workers, prefetch
from tests.cluster import wait_for

ROOT = Path(__file__).resolve().parents[3]


def batch_of(step: int) -> Any:
    """A batch of a step, and the process that built it."""
    if step == 7:
        raise UserError("no batch at step 7")
    return torch.full((2, 3), step), os.getpid()


@pytest.mark.parametrize("steps", [range(3, 7), range(3, 4), range(3, 3)])
def test_each_step_has_its_batch(steps: range) -> None:
    built: list[int] = []

    def building(step: int) -> Any:
        built.append(step)
        return f"batch {step}"

    for batches in (prefetch(building, steps, workers=0), made_ahead(map(building, steps))):
        with batches as given:
            assert list(given) == [f"batch {step}" for step in steps]
    assert built == [*steps, *steps]


def test_workers_build_each_step_and_an_error_is_raised_at_its_step() -> None:
    state = torch.get_rng_state()
    with prefetch(batch_of, range(2, 9), workers=2) as batches:
        given: list[Any] = [next(batches) for _ in range(2, 7)]
        with pytest.raises(UserError, match="no batch at step 7"):
            next(batches)
        workers = {process for _, process in given}
        assert all(psutil.pid_exists(process) for process in workers)

    assert [int(tensor[0, 0]) for tensor, _ in given] == [2, 3, 4, 5, 6]
    assert os.getpid() not in workers
    assert len(workers) == 2
    assert torch.equal(torch.get_rng_state(), state)
    wait_for(lambda: not any(_runs(process) for process in workers))  # torch waits only 5 s


def test_a_killed_worker_ends_the_run_with_one_line() -> None:
    with pytest.raises(ProcessFailed, match="one of 1 processes that build batches was killed") as raised:
        _kill_worker()

    assert "\n" not in str(raised.value)


def _kill_worker() -> None:
    with prefetch(batch_of, range(1000), workers=1) as batches:
        for step, batch in enumerate(batches):
            if step == 8:  # the end of steps comes before that of the batches
                return
            given: Any = batch
            os.kill(given[1], signal.SIGKILL)
            time.sleep(0.2)


def test_workers_end_with_a_killed_parent() -> None:
    code = (
        "from tasks.training.prefetch import prefetch\n"
        "from tests.tasks.training.test_prefetch import batch_of\n"
        "import sys, time\n"
        "if __name__ == '__main__':\n"
        "    with prefetch(batch_of, range(4), workers=1) as batches:\n"
        "        print(next(batches)[1], flush=True)\n"
        "        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert _runs(worker)
        parent.kill()

    until = time.monotonic() + 60
    while _runs(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_thread_builds_the_next_batch_and_no_more() -> None:
    building = {step: threading.Event() for step in range(4)}

    def waited(step: int) -> Any:
        building[step].set()
        return threading.current_thread()

    with made_ahead(map(waited, range(4))) as batches:
        assert next(batches) is not threading.main_thread()
        assert building[1].wait(10)
        assert not building[2].is_set()
    assert not building[2].is_set()


def test_a_thread_makes_as_many_ahead_as_it_may() -> None:
    made = [threading.Event() for _ in range(6)]

    def making(number: int) -> int:
        made[number].set()
        return number

    with made_ahead(map(making, range(6)), 3) as given:
        assert next(given) == 0
        assert all(event.wait(10) for event in made[:4])
        assert not any(event.is_set() for event in made[4:])
        assert list(given) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_cannot_be_built_is_reported_at_its_step(in_thread: bool) -> None:
    def breaking(step: int) -> Any:
        if step == 1:
            raise ValueError("no batch")
        return step

    steps = range(3)
    with made_ahead(map(breaking, steps)) if in_thread else prefetch(breaking, steps, workers=0) as batches:
        assert next(batches) == 0
        with pytest.raises(ValueError, match="no batch"):
            next(batches)


def test_a_gpu_has_workers_and_a_cpu_none_unless_requested(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.training.prefetch.num_cores", lambda: 24)

    def numbers(processes: int, **settings: Any) -> list[int]:
        with session(Session(store, Execution(processes=processes, **settings))):
            return [num_batch_workers(torch.device(kind)) for kind in ("cpu", "cuda")]

    assert numbers(1) == [0, 4]
    assert numbers(8) == [0, 2]
    assert numbers(24) == [0, 1]
    assert numbers(8, batch_workers=3) == [3, 3]
    assert numbers(1, batch_workers=0) == [0, 0]
