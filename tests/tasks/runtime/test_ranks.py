"""Several processes: the gradients of one, the same weights after a kill, and no process left behind."""

import json
import os
import re
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

from storage.errors import UserError
from storage.rows import write_rows
from storage.store.store import Store
from storage.tables import Checkpoint, Negatives, Passages, Positives, Queries
from tasks.finetuning.train import Training, train
from tasks.pretraining.pretrain import pretrain
from tasks.runtime import distributed, ranks
from tasks.runtime.heartbeat import HostLost
from tasks.runtime.rank_processes import PARENT, Processes
from tasks.runtime.ranks import run_together
from tasks.runtime.shard import ProcessFailed
from tasks.runtime.work_folder import CHECKPOINTS, TOKENS
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tasks.training import checkpoints, loop
from tasks.training.grad_cache import split_into_chunks
from tests import warm
from tests.tasks import together
from tests.tasks.finetuning.test_train import NEGATIVES, POSITIVES, TRAINING, negatives, passages, positives, queries
from tests.tasks.pretraining import test_pretrain
from tests.tiny import RETRIEVERS, save_backbone

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Session]:
    """A session of two processes."""
    execution = Execution(workers=1, threads=1, device="cpu", processes=2)
    with session(Session(Store(tmp_path / "store"), execution)) as current:
        yield current


def done_together(body: Callable[..., None], settings: together.TrainingSettings, current: Session, out: Path) -> None:
    out.mkdir(exist_ok=True)
    run_together(body, out, (), settings, current.store)


def test_two_processes_have_the_gradients_of_one_and_one_that_is_killed_is_told(two: Session, tmp_path: Path) -> None:
    settings = together.TrainingSettings(
        kinds=["mixture", "coil", "duplex", "cot_mae"], chunk=2
    )  # four chunks, the last of one query
    with pytest.raises(ProcessFailed, match="one of 2 processes was killed"):
        done_together(together.write_gradients_and_vanish, settings, two, tmp_path / "two")
    assert json.loads((tmp_path / "two" / "listening.json").read_text()) == ["127.0.0.1"]
    (tmp_path / "one").mkdir()
    together.write_gradients(tmp_path / "one", settings=settings)

    for kind in settings.kinds:
        ours, expected = (load_file(tmp_path / name / f"{kind}.safetensors") for name in ("two", "one"))
        assert set(ours) == set(expected)
        largest = max(float(tensor.abs().max()) for tensor in expected.values())
        for name, gradient in expected.items():
            difference = float((ours[name] - gradient).abs().max())
            assert difference < 1e-6 * largest, f"{kind} {name}"


def test_nothing_that_other_processes_send_is_unpickled() -> None:
    forbidden = re.compile(r"(gather|broadcast|scatter|send|recv)_object|distributed\.(elastic|launch|run|rpc)")
    files = [path for folder in ("flows", "models", "storage", "tasks") for path in (ROOT / folder).rglob("*.py")]

    result = {
        path.name for path in files if forbidden.search(re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL))
    }

    assert result == set()


def test_chunks_are_dealt_as_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "size", lambda: 3)

    assert [list(distributed.shard_of_rank(range(7), number)) for number in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert split_into_chunks(7, 2) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert split_into_chunks(7, None) == [(0, 2), (2, 4), (4, 7)]  # one for each
    assert split_into_chunks(7, 6) == [(0, 2), (2, 4), (4, 7)]
    with pytest.raises(UserError, match="a batch of 2 rows cannot be shared by 3 processes"):
        split_into_chunks(2, None)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (together.complain, UserError, "^expected something else$"),
        (
            together.break_down, ProcessFailed,
            "process 2 of 2: ZeroDivisionError: weight and 0 more weights are not the same in all 2 processes",
        ),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_one_is_told(
    body: Callable[..., None], error: type[Exception], message: str, two: Session, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        done_together(body, together.TrainingSettings(kinds=[], chunk=None), two, tmp_path / "out")


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("reported", [True, False])
def test_the_error_of_another_hosts_process_is_told_and_not_only_that_the_host_is_lost(
    reported: bool, two: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host's process reports in the shared folder, while the processes here still wait for it."""

    def lost(processes: Processes, monitor: object) -> bool:
        if reported:
            [folder] = (tmp_path / "out").glob("**/ranks-*")
            ranks._report_error(folder, 1, MemoryError("no memory left there"))
        raise HostLost("host other was lost")

    monkeypatch.setattr(ranks, "_wait", lost)
    expected = (ProcessFailed, "process 2 of 2: MemoryError: no memory") if reported else (HostLost, "host other was")
    with pytest.raises(expected[0], match=expected[1]):
        done_together(together.complain, together.TrainingSettings(kinds=[], chunk=None), two, tmp_path / "out")


@stage(version=1, table=Checkpoint)
def make_backbone(out: Path) -> None:
    """With dropout, so that chance shows."""
    save_backbone(out, dropout=0.1)


@stage(version=1, table=Queries)
def make_queries(out: Path) -> None:
    """Those of the tests of training."""
    write_rows(out, Queries, queries(POSITIVES))


@stage(version=1, table=Passages)
def make_passages(out: Path) -> None:
    """Likewise."""
    write_rows(out, Passages, passages())


@stage(version=1, table=Positives)
def make_positives(out: Path) -> None:
    """Likewise."""
    write_rows(out, Positives, positives(POSITIVES))


@stage(version=1, table=Negatives)
def make_negatives(out: Path) -> None:
    """Likewise."""
    write_rows(out, Negatives, negatives(NEGATIVES))


def training_inputs() -> tuple[Any, ...]:
    """What a training reads, in the session's store."""
    return make_backbone(), make_queries(), make_passages(), make_positives(), make_negatives(), None


def settings(steps: int) -> Training:
    fitting = TRAINING.fit.model_copy(update={"chunk": 2})
    return TRAINING.model_copy(
        update={"retriever": RETRIEVERS["hybrid"], "epochs": None, "steps": steps, "fit": fitting}
    )


def losses(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith("per_second")} for line in lines]


@pytest.mark.usefixtures("forked_ranks")
def test_a_training_of_two_is_that_of_one_and_goes_on_after_a_kill_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    for processes in (1, 2):
        execution = Execution(workers=1, threads=1, device="cpu", processes=processes)
        with session(Session(Store(tmp_path / str(processes)), execution)) as current:
            inputs = training_inputs()
            artifact = train(**dict(zip(train.parameters, inputs, strict=True)), settings=settings(6))
        built.append((artifact.path, current.store.manifest(artifact.stage, artifact.key)))
        assert not list((current.store.root / ".work").iterdir())
    (one, as_one), (two, as_two) = built

    assert as_one
    assert as_two
    assert (as_one.key, set(as_one.files), as_one.settings) == (as_two.key, set(as_two.files), as_two.settings)
    assert (as_one.built["execution"]["processes"], as_two.built["execution"]["processes"]) == (1, 2)
    for line, other in zip(losses(one), losses(two), strict=True):
        assert other == pytest.approx(line, rel=1e-4)
    ours, expected = (load_file(folder / "model.safetensors") for folder in (two, one))
    for name, weight in expected.items():
        torch.testing.assert_close(ours[name], weight, atol=2e-4, rtol=1e-3)

    (killed := tmp_path / "killed").mkdir()
    monkeypatch.setenv("PRETRIEVE_TEST_DIES_AFTER", "2")
    with session(current):
        with pytest.raises(ProcessFailed, match="was killed"):
            run_together(dying, killed, inputs, settings(6), current.store)
        assert list((killed / CHECKPOINTS).glob("*2"))
        run_together(late, killed, inputs, settings(6), current.store)

    assert (killed / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert losses(killed) == losses(two)


@pytest.mark.usefixtures("forked_ranks")
def test_both_read_the_texts_that_one_has_tokenised(two: Session, tmp_path: Path) -> None:
    inputs = test_pretrain.given_pairs(), None, test_pretrain.given_start(), None
    wanted = test_pretrain.settings(steps=3, fit={**test_pretrain.FITTING.model_dump(), "chunk": 4})
    (alone := tmp_path / "alone").mkdir()
    (out := tmp_path / "out").mkdir()
    pretrain.body(alone, *inputs, settings=wanted)
    run_together(pretrain.body, out, inputs, wanted, two.store)

    (tokens,) = (out / TOKENS).iterdir()  # a single file is the second's
    assert tokens.read_bytes() == (alone / TOKENS / tokens.name).read_bytes()
    for line, other in zip(losses(alone), losses(out), strict=True):
        assert other == pytest.approx(line, rel=1e-4)


def dying(out: Path, *inputs: Any, settings: Training) -> None:
    """The training, with a checkpoint at every step; both processes are killed when some are there."""
    loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    last, checkpoint = int(os.environ["PRETRIEVE_TEST_DIES_AFTER"]), loop.save_state

    def kill_after(folder: Path, step: int, *arguments: Any) -> None:
        checkpoint(folder, step, *arguments)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.save_state = kill_after  # type: ignore[assignment]
    train.body(out, *inputs, settings=settings)


def late(out: Path, *inputs: Any, settings: Training) -> None:
    """The training, where the second process sees the newest checkpoint later, as on a disk of several hosts."""
    assert checkpoints.newest_intact(out) == "000000002"
    checkpoints.SECONDS_BETWEEN_LOOKS = 0.01
    if distributed.rank() == 1:
        intact, seen = checkpoints.is_intact, iter([False] * 3)
        checkpoints.is_intact = lambda out, name: name[-1] != "2" or (next(seen, True) and intact(out, name))
    train.body(out, *inputs, settings=settings)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux only")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_ended_from_outside_nothing_stays_behind(
    end: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"""
from pathlib import Path
from storage.store.store import Store
from tasks.runtime.ranks import run_together
from tasks.session import Execution, Session, session
from tests import warm
from tests.tasks import together
from tests.tasks.pretraining import test_pretrain
with session(Session(Store(Path({str(tmp_path)!r})), Execution(threads=1, device="cpu", processes=2))) as current:
    settings = together.TrainingSettings(kinds=[], chunk=None)
    run_together(together.linger, Path({str(tmp_path)!r}), (), settings, current.store)
"""
    monkeypatch.setenv("TELL", str(tmp_path))
    process = warm.program(program, output=Path(os.devnull))
    pid_files = [tmp_path / f"{rank}.pid" for rank in range(2)]
    deadline = time.monotonic() + 300
    while not all(path.exists() and path.read_text() for path in pid_files) and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(path.read_text()) for path in pid_files]
    assert all(map(alive, pids))

    process.send(end)
    process.wait(600)

    deadline = time.monotonic() + 120
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux only")
def test_a_process_whose_parent_ended_at_once_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tasks.runtime.ranks", str(tmp_path), str(tmp_path)]

    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {PARENT: "1"}, timeout=300, capture_output=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [
        ("cuda:1", 4, "execution.device: 2 processes take a GPU each; expected auto or cuda, found cuda:1"),
        ("cuda", 1, "execution.processes: expected at most 1, one for each GPU that is here, found 2"),
        ("auto", 1, "execution.processes: expected at most 1"),
    ],
)
def test_each_process_needs_a_gpu_of_its_own(
    device: str, gpus: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    current = Session(Store(tmp_path), Execution(device=device, processes=2))

    with session(current), pytest.raises(UserError, match=message):
        done_together(together.complain, together.TrainingSettings(kinds=[], chunk=None), current, tmp_path / "out")
