"""A damaged checkpoint of a training is discarded in favour of the one before, and the result stays the same."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models.objective import Losses
from models.retrievers.examples import Examples
from models.tokens import pad
from storage.store.store import Store
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.session import Execution, Session, session
from tasks.training import checkpoints, loop
from tasks.training.interval import Diverged
from tasks.training.loop import fit
from tasks.training.optimiser import OptimisationSettings
from tests.tasks.training.small_objectives import BrokenOff

pytestmark = pytest.mark.usefixtures("on_one_thread")
FITTING = OptimisationSettings(
    learning_rate=3e-2, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)
STEPS = 6


class Slope(nn.Module):
    """Two parameters and a local loss with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        self.bias = nn.Parameter(torch.ones(3))

    def encode(self, batch: Examples) -> tuple[tuple[Tensor, ...], Losses]:
        """A local loss."""
        rows = nn.functional.dropout(batch.queries.ids.float(), 0.3)
        return (), {"slope": ((rows @ self.matrix.T + self.bias) ** 2).mean()}

    def compare(self, vectors: tuple[Tensor, ...], batch: Examples) -> Losses:
        """Nothing."""
        return {}


def batch_of(step: int) -> Examples:
    rows = [[step + 1, row + 2, 3, 5] for row in range(4)]
    return Examples(pad(rows), pad(rows), 1, None)


def train(out: Path, until: int = STEPS) -> tuple[dict[str, Tensor], list[str]]:
    """Train to the end, or to a kill after `until` steps; the weights, and what is printed."""
    built, printed = Slope(), []

    def breaking(step: int) -> Examples:
        if step == until:
            raise BrokenOff
        return batch_of(step)

    with session(Session(Store(out.parent / "store"), Execution(threads=1, device="cpu"), print_line=printed.append)):
        try:
            fit(built, breaking, STEPS, out=out, settings=FITTING, seed=3)
        except BrokenOff:
            assert until < STEPS
    return built.state_dict(), printed


@pytest.fixture(autouse=True)
def after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)


def flipped(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def without_a_key(path: Path) -> None:
    tensors = load_file(path)
    save_file(dict(list(tensors.items())[1:]), path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "first byte": lambda path: flipped(path, 0),
    "header": lambda path: flipped(path, 12),
    "last byte": lambda path: flipped(path, -1),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"nonsense" * 40),
    "missing key": without_a_key,
    "missing": Path.unlink,
}


@pytest.mark.parametrize("file", ["weights.safetensors", "optimiser.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str, file: str) -> None:
    unbroken, _ = train(tmp_path / "unbroken")
    out = tmp_path / "broken"
    train(out, until=4)
    assert sorted(path.name for path in (out / CHECKPOINTS).iterdir()) == ["000000003", "000000004"]
    DAMAGES[damage](out / CHECKPOINTS / "000000004" / file)

    resumed, printed = train(out)

    assert printed == [
        "broken: the checkpoint of step 4 is damaged or incomplete; the training resumes after step 3",
        "training: resumes after 3 of 6 steps",
    ]
    assert all(torch.equal(resumed[name], value) for name, value in unbroken.items())
    logs = [(tmp_path / name / "logs" / "metrics.jsonl").read_text().count('"step"') for name in ("unbroken", "broken")]
    assert logs == [STEPS, STEPS]


def test_where_no_checkpoint_is_intact_the_training_starts_anew(tmp_path: Path) -> None:
    unbroken, _ = train(tmp_path / "unbroken")
    out = tmp_path / "broken"
    train(out, until=4)
    for folder in (out / CHECKPOINTS).iterdir():
        flipped(folder / "weights.safetensors", -1)

    resumed, printed = train(out)

    assert printed == [
        "broken: the checkpoint of step 4 is damaged or incomplete; no other is left: the training starts again"
    ]
    assert all(torch.equal(resumed[name], value) for name, value in unbroken.items())


def test_a_checkpoint_of_a_version_without_hashes_is_discarded_with_a_message(tmp_path: Path) -> None:
    out = tmp_path / "old"
    folder = out / CHECKPOINTS / "000000002"
    folder.mkdir(parents=True)
    save_file({"matrix": torch.zeros(3, 4), "bias": torch.zeros(3)}, folder / "weights.safetensors")

    resumed, printed = train(out)

    assert [line.partition(";")[0] for line in printed] == ["old: the checkpoint of step 2 is damaged or incomplete"]
    unbroken, _ = train(tmp_path / "unbroken")
    assert all(torch.equal(resumed[name], value) for name, value in unbroken.items())


def test_an_intact_checkpoint_is_resumed_from_without_a_warning(tmp_path: Path) -> None:
    train(tmp_path / "out", until=4)

    assert train(tmp_path / "out")[1] == ["training: resumes after 4 of 6 steps"]


def test_a_damaged_line_of_the_log_is_dropped(tmp_path: Path) -> None:
    train(tmp_path / "out", until=4)
    log = tmp_path / "out" / "logs" / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0].encode(), b'{"step": \xff}\n', *(line.encode() for line in lines[2:])]))

    train(tmp_path / "out")

    assert log.read_text().count('"step"') == STEPS - 1


def test_weights_that_the_last_update_makes_infinite_are_not_published(tmp_path: Path) -> None:
    built = Slope()
    with torch.no_grad():
        built.bias.fill_(3e38)  # the update adds as much
    fitting = FITTING.model_copy(update={"learning_rate": 3e38, "warmup_ratio": 0.0, "max_gradient_norm": None})

    def still(batch: Examples) -> tuple[tuple[Tensor, ...], Losses]:
        return (), {"slope": -(built.bias * 1e-3).sum()}

    built.encode = still  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"step 1 of 1: bias: infinite or not a number; lower the learning rate"):
        fit(built, batch_of, 1, out=tmp_path, settings=fitting, seed=3)
    assert not math.isfinite(built.bias.sum().item())
    assert not (tmp_path / CHECKPOINTS).exists()


def test_a_process_that_does_not_see_the_checkpoint_of_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a second host whose store is another disk; the first process of several has saved step 3."""
    monkeypatch.setattr(checkpoints, "SECONDS_UNTIL_SEEN", 0.1)
    monkeypatch.setattr(checkpoints, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(checkpoints.distributed, "integer_of_first", lambda value: 3)

    with pytest.raises(checkpoints.CheckpointNotSeen, match="000000003: the first process has this checkpoint"):
        train(tmp_path)
