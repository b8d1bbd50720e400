"""SIGTERM in the middle of a training: a checkpoint of the step reached, the signal's own end, the same bytes later.

Processes of trainings import this file, so Prefect, whose import takes a second, is imported where it is used.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.objective import Batch
from storage.store.locks import LeaseLost
from storage.store.store import Store
from tasks.runtime import distributed
from tasks.runtime.ranks import run_together
from tasks.runtime.shard import ProcessFailed
from tasks.runtime.signals import DeferredSigterm, unwind_on_sigterm
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.session import Execution, Session, session
from tasks.training import optimiser
from tasks.training.loop import fit
from tests import warm
from tests.tasks import together
from tests.tasks.training.small_objectives import FITTING, batches, equal, lines, objective, run
from tests.tiny import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("on_one_thread")
STEPS = 7


class Ended(BaseException):
    """What a handler of SIGTERM may raise."""


def raise_ended(*_: object) -> None:
    raise Ended


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    """handled(handler) sets what SIGTERM does until the end of the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def told_in(step: int, visited: list[int]) -> Callable[[int], Batch]:
    """Batches; this process gets SIGTERM twice while it makes that of the step."""
    batch_of = batches("contrast", tiny_tokenizer())

    def build_batch(now: int) -> Batch:
        visited.append(now)
        for _ in range(2 if now == step else 0):
            os.kill(os.getpid(), signal.SIGTERM)
        return batch_of(now)

    return build_batch


def last_step(out: Path) -> int:
    return int(lines(out)[-1]["step"])


def saved_checkpoints(out: Path) -> list[str]:
    """Return the names of the checkpoints of a training, the newest last."""
    return sorted(path.name for path in (out / CHECKPOINTS).glob("*"))


def test_a_training_ends_its_step_and_saves_and_goes_on_from_there(
    tmp_path: Path, handled: Callable[[Any], None]
) -> None:
    visited: list[int] = []
    batch_of = told_in(3, visited)
    unbroken = run(objective("contrast", dropout=0.1), batches("contrast", tiny_tokenizer()), STEPS, tmp_path / "whole")
    handled(raise_ended)

    with pytest.raises(Ended):
        run(objective("contrast", dropout=0.1), batch_of, STEPS, tmp_path / "told")

    assert signal.getsignal(signal.SIGTERM) is raise_ended
    assert saved_checkpoints(tmp_path / "told") == ["000000004"]
    assert lines(tmp_path / "told")[-1]["step"] == 4
    resumed = run(objective("contrast", dropout=0.1), batches("contrast", tiny_tokenizer()), STEPS, tmp_path / "told")
    assert visited == [0, 1, 2, 3]
    assert equal(unbroken, resumed)
    assert lines(tmp_path / "told") == lines(tmp_path / "whole")


def test_where_nobody_ends_it_the_training_goes_on(tmp_path: Path, handled: Callable[[Any], None]) -> None:
    handled(signal.SIG_IGN)
    visited: list[int] = []

    run(objective("contrast"), told_in(3, visited), STEPS, tmp_path)

    assert visited == list(range(STEPS))
    assert saved_checkpoints(tmp_path) == ["000000004"]


def test_prefects_own_signal_comes_when_the_checkpoint_is_there(tmp_path: Path, handled: Callable[[Any], None]) -> None:
    from prefect.exceptions import TerminationSignal
    from prefect.utilities.engine import capture_sigterm

    handled(signal.SIG_IGN)  # where Prefect sends the signal on to

    with pytest.raises(TerminationSignal), capture_sigterm():
        run(objective("contrast"), told_in(2, []), STEPS, tmp_path)

    assert saved_checkpoints(tmp_path) == ["000000003"]


def test_a_signal_after_the_last_look_is_not_lost(handled: Callable[[Any], None]) -> None:
    handled(raise_ended)

    with pytest.raises(Ended), DeferredSigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is raise_ended
    with pytest.raises(Ended), unwind_on_sigterm():  # a handler that is there stays
        os.kill(os.getpid(), signal.SIGTERM)


def alone(out: Path) -> None:
    """A training in this process, slow enough to be told."""
    slow_down()
    fit(objective("contrast"), batches("contrast", tiny_tokenizer()), 60, out=out, settings=FITTING, seed=3)


def slowly(out: Path, *, settings: together.TrainingSettings) -> None:
    """A training among others, slow enough to be told."""
    if "TELL" in os.environ:
        (Path(os.environ["TELL"]) / f"{distributed.rank()}.pid").write_text(str(os.getpid()))
    slow_down()
    together.train_for(20, out, settings)


def slow_down() -> None:
    """Each step waits a little."""
    schedule = optimiser.schedule

    def waiting(*given: Any) -> float:
        time.sleep(0.2)
        return schedule(*given)

    optimiser.schedule = waiting


PROGRAM = """
import sys, signal
from pathlib import Path
from storage.store.locks import LeaseLost
from storage.store.store import Store
from tasks.runtime.ranks import run_together
from tasks.runtime.shard import ProcessFailed
from tasks.session import Execution, Session, session
from tests import warm
from tests.tasks import together
from tests.tasks.runtime import test_signals
out = Path(sys.argv[1])
processes = int(sys.argv[2])
if sys.argv[3] == "handled":
    signal.signal(signal.SIGTERM, test_signals.raise_ended)
with session(Session(Store(out / "store"), Execution(threads=1, device="cpu", processes=processes))) as current:
    try:
        if processes == 1:
            test_signals.alone(out)
        else:
            settings = together.TrainingSettings(kinds=["coil"], chunk=2)
            run_together(test_signals.slowly, out, (), settings, current.store)
    except test_signals.Ended:
        print("ended in order")
"""


def wait_for_steps(out: Path) -> None:
    """Until a few steps are logged."""
    metrics, deadline = out / "logs" / "metrics.jsonl", time.monotonic() + 600
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def told_from_outside(out: Path, processes: int, handler: str) -> tuple[int, str]:
    """Run the program, tell it to end after some steps; its exit code and what it said."""
    out.mkdir()
    process = warm.program(PROGRAM, str(out), str(processes), handler, output=out / "said.txt")
    wait_for_steps(out)
    process.send(signal.SIGTERM)
    return process.wait(600), (out / "said.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "handler", "code"),
    [(1, "default", -signal.SIGTERM), (1, "handled", 0), (2, "default", -signal.SIGTERM)],
)
def test_told_from_outside_it_saves_and_ends_as_the_signal_says(
    processes: int, handler: str, code: int, tmp_path: Path
) -> None:
    out = tmp_path / "told"

    ended, output = told_from_outside(out, processes, handler)

    assert ended == code, output
    assert ("ended in order" in output) == (handler == "handled")
    assert saved_checkpoints(out)[-1] == f"{last_step(out):09d}"
    assert 3 <= last_step(out) < 20
    assert not list((out / "scratch").glob("ranks-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_several_whose_lease_is_lost_save_nothing(tmp_path: Path) -> None:
    def lose(*_: object) -> None:
        raise LeaseLost

    def lose_it() -> None:
        wait_for_steps(tmp_path)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lose)
    thread = threading.Thread(target=lose_it)
    thread.start()
    settings, execution = (
        together.TrainingSettings(kinds=["coil"], chunk=2),
        Execution(threads=1, device="cpu", processes=2),
    )
    with session(Session(Store(tmp_path / "store"), execution)) as current, pytest.raises(LeaseLost):
        run_together(slowly, tmp_path, (), settings, current.store)
    thread.join()
    signal.signal(signal.SIGUSR1, before)

    assert not saved_checkpoints(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_one_that_is_told_has_all_save_and_they_go_on_to_the_bytes_of_an_unbroken_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted, whole = tmp_path / "told", tmp_path / "whole"
    settings, execution = (
        together.TrainingSettings(kinds=["coil"], chunk=2),
        Execution(threads=1, device="cpu", processes=2),
    )
    interrupted.mkdir()
    whole.mkdir()
    monkeypatch.setenv("TELL", str(tmp_path))

    def tell_the_second() -> None:
        wait_for_steps(interrupted)
        os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGTERM)

    thread = threading.Thread(target=tell_the_second)
    with session(Session(Store(tmp_path / "store"), execution)) as current:
        thread.start()
        with pytest.raises(ProcessFailed, match="was killed"):
            run_together(slowly, interrupted, (), settings, current.store)
        thread.join()
        assert saved_checkpoints(interrupted)[-1] == f"{last_step(interrupted):09d}"
        reached = last_step(interrupted)
        for out in (interrupted, whole):
            run_together(together.twenty_steps, out, (), settings, current.store)

    assert (interrupted / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    assert lines(interrupted) == lines(whole)
    assert json.loads((interrupted / "visited.json").read_text()) == list(range(reached, 20))


def test_prefect_takes_what_stands_in_for_its_handler_as_its_own() -> None:
    """Else a worker that cancels a run calls it Crashed."""
    from prefect.utilities import engine
    from prefect.utilities.engine import capture_sigterm

    own = engine._prefect_sigterm_handler
    with capture_sigterm():
        with DeferredSigterm() as sigterm:
            assert engine.can_ack_control_intent()
            assert not sigterm.noted
        assert engine.can_ack_control_intent()
        assert signal.getsignal(signal.SIGTERM) is own

    assert engine._prefect_sigterm_handler is own
