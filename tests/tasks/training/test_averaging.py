"""Averages of weights against a list of all weights, also after a training was broken off and taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.objective import Batch
from models.tokens import Tokenizer
from storage.errors import UserError
from tasks.training.averaging import Average, WeightAverage
from tests.tasks.training.small_objectives import FITTING, Breaking, batches, break_off_twice, equal, objective, run

AVERAGES = {
    "exponential": Average(decay=0.7),
    "last three": Average(last=3, every=2),
    "last two": Average(last=2, every=3),
}
STEPS = 7


def slow_average(history: list[Tensor], settings: Average) -> Tensor:
    """The average by its definition from the weights before the training and after each step, in double precision."""
    values = [value.double() for value in history]
    if settings.decay is not None:
        average, decay = values[0], settings.decay
        for value in values[1:]:
            average = decay * average + (1 - decay) * value
        return average
    assert settings.last is not None
    assert settings.every is not None
    return torch.stack(values[::-1][:: settings.every][: settings.last]).mean(0)


@pytest.mark.parametrize("name", AVERAGES)
def test_the_end_is_the_average_of_the_weights(name: str, tokenizer: Tokenizer, tmp_path: Path, store: object) -> None:
    settings, batch_of = AVERAGES[name], batches("contrast", tokenizer)
    history: list[dict[str, Tensor]] = []
    model = objective("contrast")

    def seen(step: int) -> Batch:
        history.append({key: value.detach().clone() for key, value in model.state_dict().items()})
        return batch_of(step)

    last = run(objective("contrast"), batch_of, STEPS, tmp_path / "plain")
    averaged = run(model, seen, STEPS, tmp_path / "averaged", fitting=FITTING.model_copy(update={"average": settings}))

    history.append(last)  # the averages change nothing in the training itself
    assert len(history) == STEPS + 1
    for key, value in averaged.items():
        expected = slow_average([weights[key] for weights in history], settings)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-5)
    assert not equal(averaged, last)


@pytest.mark.parametrize("name", AVERAGES)
def test_broken_off_and_taken_up_again_ends_as_unbroken(
    name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: object
) -> None:
    batch_of, fitting = batches("contrast", tokenizer), FITTING.model_copy(update={"average": AVERAGES[name]})
    unbroken = run(objective("contrast", dropout=0.1), batch_of, STEPS, tmp_path / "unbroken", fitting=fitting)
    breaking = Breaking(batch_of, 5, 8)

    def train() -> dict[str, Tensor]:
        return run(objective("contrast", dropout=0.1), breaking, STEPS, tmp_path / "broken", fitting=fitting)

    break_off_twice(train, monkeypatch)
    resumed = train()

    assert breaking.visited == [0, 1, 2, 3, 4, 4, 5, 6, 4, 5, 6]
    assert equal(unbroken, resumed)


@pytest.mark.parametrize(
    "values", [{}, {"decay": 0.9, "last": 2}, {"last": 2}, {"every": 2}, {"decay": 1.0}, {"last": 1, "every": 1}]
)
def test_one_kind_of_average_is_given(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"give either decay, or last and every|less than 1|greater than 1"):
        Average.model_validate(values)


def test_more_checkpoints_than_steps_are_refused() -> None:
    with pytest.raises(UserError, match=r"fit.average: 3 checkpoints need 5 steps or more, found 4"):
        WeightAverage(objective("contrast"), Average(last=3, every=2), 4)
