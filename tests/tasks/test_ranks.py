"""Several processes: the gradients of one, the same weights after a kill, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from storage.artifact import Artifact
from storage.errors import UserError
from storage.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries
from tasks import fit as loop
from tasks import world
from tasks.gradients import cut
from tasks.ranks import PARENT, Failed, run_together
from tasks.stage import Execution, Session, session
from tasks.train import Training, train
from tests.tasks import together
from tests.tasks.test_train import NEGATIVES, POSITIVES, TRAINING, negatives, passages, positives, queries
from tests.tiny import RETRIEVERS, save_backbone

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Session]:
    """A session of two processes."""
    execution = Execution(workers=1, threads=1, device="cpu", processes=2)
    with session(Session(Store(tmp_path / "store"), execution)) as current:
        yield current


def done_together(body: Callable[..., None], asked: together.Asked, current: Session, out: Path) -> None:
    out.mkdir(exist_ok=True)
    run_together(body, out, (), asked, current.store)


def test_two_processes_have_the_gradients_of_one(two: Session, tmp_path: Path) -> None:
    asked = together.Asked(
        kinds=["mixture", "coil", "duplex", "cot_mae"], chunk=2
    )  # four chunks, the last of one query
    done_together(together.write_gradients, asked, two, tmp_path / "two")
    (tmp_path / "one").mkdir()
    together.write_gradients(tmp_path / "one", settings=asked)

    for kind in asked.kinds:
        ours, expected = (load_file(tmp_path / name / f"{kind}.safetensors") for name in ("two", "one"))
        assert set(ours) == set(expected)
        largest = max(float(each.abs().max()) for each in expected.values())
        for name, each in expected.items():
            difference = float((ours[name] - each).abs().max())
            assert difference < 1e-6 * largest, f"{kind} {name}"


def test_chunks_are_dealt_as_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "size", lambda: 3)

    assert [list(world.dealt(range(7), each)) for each in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert cut(7, 2) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert cut(7, None) == [(0, 2), (2, 4), (4, 7)]  # one for each
    assert cut(7, 6) == [(0, 2), (2, 4), (4, 7)]
    with pytest.raises(UserError, match="a batch of 2 rows cannot be shared by 3 processes"):
        cut(2, None)


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (together.complain, UserError, "^expected something else$"),
        (together.break_down, Failed, "process 2 of 2: ZeroDivisionError: nothing to divide by"),
        (together.vanish, Failed, "one of 2 processes was killed"),
        (together.drift, Failed, "Different: weight and 0 more weights are not the same in all 2 processes"),
    ],
)
def test_what_goes_wrong_in_one_is_told(
    body: Callable[..., None], error: type[Exception], said: str, two: Session, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        done_together(body, together.Asked(kinds=[], chunk=None), two, tmp_path / "out")


def given(written: Any, folder: Path) -> tuple[Any, ...]:
    folder.mkdir()
    return (
        Artifact[Checkpoint]("initialise", "tiny", save_backbone(folder, dropout=0.1)),
        written(Queries, queries(POSITIVES)), written(Passages, passages()), written(Positives, positives(POSITIVES)),
        written(Negatives, negatives(NEGATIVES)), None,
    )  # fmt: skip


def settings(steps: int) -> Training:
    fitting = TRAINING.fit.model_copy(update={"chunk": 2})
    return TRAINING.model_copy(
        update={"retriever": RETRIEVERS["hybrid"], "epochs": None, "steps": steps, "fit": fitting}
    )


def losses(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in each.items() if not name.endswith("per_second")} for each in lines]


def test_a_training_of_two_is_that_of_one(two: Session, written: Any, tmp_path: Path) -> None:
    inputs = given(written, tmp_path / "backbone")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    run_together(train.body, tmp_path / "two", inputs, settings(6), two.store)
    train.body(tmp_path / "one", *inputs, settings=settings(6))

    for one, other in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert other == pytest.approx(one, rel=1e-4)
    ours, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name, each in expected.items():
        torch.testing.assert_close(ours[name], each, atol=2e-4, rtol=1e-3)


def test_two_that_were_killed_go_on_to_the_same_bytes(
    two: Session, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = given(written, tmp_path / "backbone")
    for name in ("unbroken", "killed"):
        (tmp_path / name).mkdir()
    run_together(train.body, tmp_path / "unbroken", inputs, settings(4), two.store)

    monkeypatch.setenv("PRETRIEVE_TEST_DIES_AFTER", "2")
    with pytest.raises(Failed, match="was killed"):
        run_together(dying, tmp_path / "killed", inputs, settings(4), two.store)
    assert list((tmp_path / "killed" / loop.STATE).glob("*2"))
    run_together(train.body, tmp_path / "killed", inputs, settings(4), two.store)

    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("unbroken", "killed"))
    assert first == second
    assert losses(tmp_path / "killed") == losses(tmp_path / "unbroken")


def dying(out: Path, *inputs: Any, settings: Training) -> None:
    """The training, with a checkpoint at every step; both processes are killed when some are there."""
    loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    last, checkpoint = int(os.environ["PRETRIEVE_TEST_DIES_AFTER"]), loop.checkpoint

    def kill_after(folder: Path, step: int, *given: Any) -> None:
        checkpoint(folder, step, *given)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.checkpoint = kill_after  # type: ignore[assignment]
    train.body(out, *inputs, settings=settings)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux only")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_ended_from_outside_nothing_stays_behind(end: signal.Signals, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from storage.store import Store
from tasks.ranks import run_together
from tasks.stage import Execution, Session, session
from tests.tasks import together
with session(Session(Store(Path({str(tmp_path)!r})), Execution(threads=1, device="cpu", processes=2))) as current:
    run_together(together.linger, Path({str(tmp_path)!r}), (), together.Asked(kinds=[], chunk=None), current.store)
"""
    with (tmp_path / "stderr.txt").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"TELL": str(tmp_path)}, stderr=stderr
        )
    told = [tmp_path / f"{rank}.pid" for rank in range(2)]
    deadline = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in told) and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(path.read_text()) for path in told]
    assert all(map(alive, pids))

    process.send_signal(end)
    process.wait()

    deadline = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))
    assert "elastic" not in (tmp_path / "stderr.txt").read_text()  # torchrun is quiet


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux only")
def test_a_launcher_whose_parent_ended_at_once_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tasks.ranks", "launch", str(tmp_path), str(tmp_path), "0"]

    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {PARENT: "1"}, timeout=30, capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, b"")


def test_a_stage_of_two_leaves_what_a_stage_of_one_does(tmp_path: Path) -> None:
    asked, made = together.Asked(kinds=["coil"], chunk=2), []
    for processes in (1, 2):
        execution = Execution(workers=1, threads=1, device="cpu", processes=processes)
        current = Session(Store(tmp_path / str(processes)), execution)
        with session(current):
            made.append(together.learn(settings=asked))
        assert not list((tmp_path / str(processes) / ".work").iterdir())
    one, two = (Store(each.path.parent.parent).manifest(each.stage, each.key) for each in made)

    assert one
    assert two
    assert (one.key, set(one.files), one.settings) == (two.key, set(two.files), two.settings)
    assert (one.built["execution"]["processes"], two.built["execution"]["processes"]) == (1, 2)
    for line, other in zip(*(losses(each.path) for each in made), strict=True):
        assert other == pytest.approx(line, rel=1e-4)
        assert line["positive_late"]


@pytest.mark.parametrize(
    ("device", "gpus", "said"),
    [
        ("cuda:1", 4, "execution.device: 2 processes take a GPU each; expected auto or cuda, found cuda:1"),
        ("cuda", 1, "execution.processes: expected at most 1, one for each GPU that is here, found 2"),
        ("auto", 1, "execution.processes: expected at most 1"),
    ],
)
def test_each_process_needs_a_gpu_of_its_own(
    device: str, gpus: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    current = Session(Store(tmp_path), Execution(device=device, processes=2))

    with session(current), pytest.raises(UserError, match=said):
        done_together(together.vanish, together.Asked(kinds=[], chunk=None), current, tmp_path / "out")
