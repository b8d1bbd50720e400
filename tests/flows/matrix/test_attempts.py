"""Which run is begun next, where other processes work on the same runs."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows.matrix.attempts import Attempts, State
from flows.matrix.planned_run import PlannedRun
from storage.store.run_notes import NotedRun, noted
from storage.store.store import Store
from tasks.session import Done


def run(name: str, *stages: str) -> PlannedRun[Any]:
    """A run of these stages, then its report."""
    steps = [Done("report", "", name, False, 1.0, 1, [], {})]
    jobs: Any = {
        reference: SimpleNamespace(reference=reference, needs=list) for reference in (*stages, f"report/{name}")
    }
    return PlannedRun(Path(name), SimpleNamespace(), name, jobs, steps)  # type: ignore[arg-type]


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts[Any]:
    return Attempts(Store.open_or_new(tmp_path), lambda name: tmp_path / name)


def test_runs_without_a_stage_that_another_process_builds_come_first(attempts: Attempts[Any]) -> None:
    begun, shares, apart = run("a", "pretrain/1"), run("b", "pretrain/1"), run("c", "pretrain/2")
    waiting = [begun, shares, apart]
    assert attempts.next(waiting) is begun

    with noted(attempts.store, "study run", "elsewhere", list(begun.jobs)):
        assert attempts.next(waiting) is apart
        assert attempts.next([begun, shares]) is shares  # it waits for the stage, since nothing else is left
        assert attempts.next([begun]) is None
        assert attempts.state(begun) is State.RUNNING

    assert attempts.next(waiting) is begun  # that process has ended
    assert attempts.next([]) is None


def test_processes_that_choose_at_the_same_time_choose_different_runs(tmp_path: Path) -> None:
    waiting, chosen = [run("a", "pretrain/1"), run("b", "pretrain/1"), run("c", "pretrain/2")], list[str]()
    start, notes = Barrier(2), list[NotedRun]()

    def choose() -> None:
        attempts = Attempts[Any](Store.open_or_new(tmp_path), lambda name: tmp_path / name)
        start.wait()
        with attempts.choosing():
            if taken := attempts.next(waiting):
                chosen.append(taken.report)
                sleep(0.05)  # as planning takes; without the lock the other would choose the same run meanwhile
                notes.append(attempts.begin(taken, "study run", taken.report))

    threads = [Thread(target=choose) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert chosen == ["a", "c"]
    for note in notes:
        note.close()


def test_a_failure_is_kept_until_the_run_is_tried_again(attempts: Attempts[Any]) -> None:
    failing, lines = run("a"), list[str]()

    def fail(note: Any) -> None:
        raise MemoryError("out of\nmemory")

    assert not attempts.attempt(failing, attempts.begin(failing, "matrix", "the run a"), fail, lines.append)
    assert attempts.state(failing) is State.FAILED
    assert attempts.failure(failing) == "MemoryError: out of memory"
    assert lines == ["the run a failed: MemoryError: out of memory; the next run starts"]

    note = attempts.begin(failing, "matrix", "the run a")
    assert attempts.failure(failing) == ""
    assert attempts.attempt(failing, note, lambda note: None, lines.append)


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), httpx.ConnectError("the server is lost")])
def test_what_ends_everything_is_no_failure_of_the_run(ending: BaseException, attempts: Attempts[Any]) -> None:
    interrupted = run("a")

    def end(note: Any) -> None:
        raise ending

    with pytest.raises(type(ending)):
        attempts.attempt(interrupted, attempts.begin(interrupted, "matrix", "the run a"), end, print)

    assert attempts.state(interrupted) is State.INTERRUPTED
