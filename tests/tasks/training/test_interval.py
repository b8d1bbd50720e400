"""What a training logs and when; no number is read from the device in between."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.objective import Losses
from models.retrievers.examples import Examples
from models.tokens import Tokenizer
from storage.store.store import Store
from tasks.session import Execution, Session, session
from tasks.training.interval import Diverged, Interval
from tasks.training.loop import fit
from tests.tasks.training.small_objectives import FITTING, batches, lines, objective, run

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture
def every_third_step(tmp_path: Path) -> Iterator[None]:
    with session(Session(Store(tmp_path / "store"), Execution(threads=1, device="cpu", log_steps=3))):
        yield


@pytest.mark.usefixtures("every_third_step")
def test_only_every_nth_step_is_logged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    batch_of = batches("ar", tokenizer)
    run(objective("ar"), batch_of, 7, tmp_path / "third")
    logged = lines(tmp_path / "third")

    with session(Session(Store(tmp_path / "store"), Execution(threads=1, device="cpu"))):
        run(objective("ar"), batch_of, 7, tmp_path / "each")

    assert [line["step"] for line in logged] == [3, 6, 7]
    assert logged == [line for line in lines(tmp_path / "each") if line["step"] in (3, 6, 7)]


@pytest.mark.usefixtures("every_third_step")
def test_divergence_between_two_lines_is_noticed_at_the_next(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Even if what is logged is finite again."""
    module, batch_of = Spiked(), batches("contrast", tokenizer)

    with pytest.raises(Diverged, match="step 6 of 9"):
        fit(module, batch_of, 9, out=tmp_path, settings=FITTING, seed=1)

    assert [line["step"] for line in lines(tmp_path)] == [3]


class Spiked(nn.Module):
    """A loss that is infinite in the fifth step only, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.steps = nn.Parameter(torch.zeros(1)), 0

    def encode(self, batch: Examples) -> tuple[tuple[Tensor, ...], Losses]:
        """Return a local loss."""
        self.steps += 1
        return (), {"loss": self.weight.sum() + (math.inf if self.steps == 5 else 0.0)}

    def compare(self, vectors: tuple[Tensor, ...], batch: Examples) -> Losses:
        """Return no losses."""
        return {}


def test_a_step_reads_numbers_from_the_device_once(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[dict[str, float]] = []
    read = Interval.read

    def counted(self: Interval, *given: Any) -> dict[str, float]:
        reads.append(read(self, *given))
        return reads[-1]

    def refused(tensor: Tensor) -> float:
        raise AssertionError("a number is read on its own")

    monkeypatch.setattr(Interval, "read", counted)
    monkeypatch.setattr(Tensor, "item", refused)
    run(objective("contrast"), batches("contrast", tokenizer), 3, tmp_path)

    assert len(reads) == 3
