"""The training loop: against a plain loop, with chunks, broken off and taken up again."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.trainer_pt_utils import get_parameter_names

from models.objective import Batch, Losses
from models.papers.cot_mae import make_batch
from models.pretraining import RawBatch
from models.retrievers.examples import Examples
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.training import loop
from tasks.training.interval import Diverged
from tasks.training.loop import fit
from tasks.training.optimiser import parameter_groups, schedule
from tests.tasks.training.small_objectives import (
    FITTING,
    KINDS,
    Breaking,
    BrokenOff,
    batches,
    break_off_twice,
    equal,
    lines,
    objective,
    run,
    settings,
)

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_can_be_learned_by_heart(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    batch = batches(kind, tokenizer)(0)

    run(objective(kind), lambda step: batch, 120, tmp_path, fitting=FITTING.model_copy(update={"learning_rate": 1e-2}))

    losses = [
        sum(value for name, value in line.items() if name in ("mlm", "context", "contrastive"))
        for line in lines(tmp_path)
    ]
    assert losses[0] > 2
    assert losses[-1] < 0.1 * losses[0]


def test_the_loop_is_the_textbooks(tokenizer: Tokenizer, tmp_path: Path) -> None:
    batch_of, model, reference = batches("ae", tokenizer), objective("ae"), objective("ae")
    fitted = run(model, batch_of, 12, tmp_path)

    decays = set(get_parameter_names(reference, [nn.LayerNorm], ["bias"]))
    named = dict(reference.named_parameters())
    optimiser = torch.optim.AdamW(
        [
            {"params": [value for name, value in named.items() if name in decays], "weight_decay": 0.01},
            {"params": [value for name, value in named.items() if name not in decays], "weight_decay": 0.0},
        ],
        lr=3e-3,
    )
    rates, clipped = transformers.get_linear_schedule_with_warmup(optimiser, math.ceil(12 * 0.1), 12), 0
    for step in range(12):
        optimiser.zero_grad()
        sum(reference.encode(batch_of(step))[1].values()).backward()
        clipped += int(nn.utils.clip_grad_norm_(reference.parameters(), 1.0) > 1.0)
        optimiser.step()
        rates.step()

    assert clipped
    begin = objective("ae").state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(fitted[name], value, atol=2e-5, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
        assert not torch.equal(begin[name], value), name


@pytest.mark.parametrize(("steps", "ratio"), [(100, 0.1), (7, 0.1), (10, 0.0), (5, 1.0), (1, 0.1), (33, 0.25)])
def test_the_schedule_is_hugging_faces(steps: int, ratio: float) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = transformers.get_linear_schedule_with_warmup(optimiser, math.ceil(steps * ratio), steps)
    for step in range(steps):
        assert schedule(step, steps, ratio) == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        reference.step()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_decay_as_in_hugging_face(kind: str) -> None:
    model = objective(kind)

    decaying, others = parameter_groups(model, 0.01)

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    results = {names[id(parameter)] for parameter in decaying["params"]}
    assert results == {
        name for name in get_parameter_names(model, [nn.LayerNorm], ["bias"]) if not name.endswith("bias")
    }
    assert len(results) + len(others["params"]) == len(names)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.01, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_train_equally(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    batch_of = batches(kind, tokenizer)
    weights = [run(objective(kind, dropout=0.1), batch_of, 4, tmp_path / str(n), seed=n // 2) for n in range(3)]

    assert lines(tmp_path / "0") == lines(tmp_path / "1") != lines(tmp_path / "2")
    assert equal(weights[0], weights[1])
    assert not equal(weights[0], weights[2])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_each_step_drops_other_numbers(dropout: float, tokenizer: Tokenizer, tmp_path: Path) -> None:
    batch = batches("ar", tokenizer)(0)

    run(objective("ar", dropout=dropout), lambda step: batch, 3, tmp_path)

    first, second = ((line["mlm"], line["context"]) for line in lines(tmp_path)[:2])
    assert lines(tmp_path)[0]["learning_rate"] == 0  # so both steps have the same weights
    assert (first == second) == (dropout == 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [None, 3])
def test_broken_off_and_taken_up_again_ends_as_unbroken(
    kind: str, chunk: int | None, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_of, fitting = batches(kind, tokenizer), FITTING.model_copy(update={"chunk": chunk})
    unbroken = run(objective(kind, dropout=0.1), batch_of, 9, tmp_path / "unbroken", fitting=fitting)
    breaking = Breaking(batch_of, 4, 8)

    def train() -> dict[str, Tensor]:
        return run(objective(kind, dropout=0.1), breaking, 9, tmp_path / "broken", fitting=fitting)

    break_off_twice(train, monkeypatch)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002  # whatever stands in the global states
    resumed = train()

    assert breaking.visited == [0, 1, 2, 3, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8]
    assert equal(unbroken, resumed)
    assert lines(tmp_path / "broken") == lines(tmp_path / "unbroken")
    assert [line["step"] for line in lines(tmp_path / "broken")] == list(range(1, 10))


def test_a_half_written_checkpoint_is_no_checkpoint(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_of = batches("ar", tokenizer)
    unbroken = run(objective("ar"), batch_of, 4, tmp_path / "unbroken")
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    run(objective("ar"), batch_of, 2, tmp_path / "other")
    state = tmp_path / "other" / CHECKPOINTS / "000000002"

    half = tmp_path / "half" / CHECKPOINTS / "building"
    half.parent.mkdir(parents=True)
    state.rename(half)
    (half / "optimiser.safetensors").unlink()

    assert equal(run(objective("ar"), batch_of, 4, tmp_path / "half"), unbroken)


def test_a_torn_line_of_metrics_is_dropped(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    batch_of, metrics = batches("ar", tokenizer), tmp_path / "logs" / "metrics.jsonl"

    with pytest.raises(BrokenOff):
        run(objective("ar"), Breaking(batch_of, 3), 3, tmp_path)
    with metrics.open("a") as file:
        file.write('{"step": 3, "mlm": 4.')

    run(objective("ar"), batch_of, 3, tmp_path)

    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_batch_without_masked_tokens_trains_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def batch_of(step: int) -> Batch:
        return make_batch(RawBatch([[]] * 4, [[]] * 4), tokenizer, settings("ae"), RowRandom(step, 0))

    for chunk in (None, 2):
        out = tmp_path / str(chunk)
        run(objective("ae"), batch_of, 2, out, fitting=FITTING.model_copy(update={"chunk": chunk}))
        assert [(line["mlm"], line["context"]) for line in lines(out)] == [(0, 0), (0, 0)]


def test_a_loss_that_is_no_number_names_the_step(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, batch_of = objective("ar"), batches("ar", tokenizer)

    def poisoned(step: int) -> Batch:
        if step == 2:
            with torch.no_grad():
                model.decoder.norm.weight.fill_(math.nan)
        return batch_of(step)

    with pytest.raises(Diverged, match=r"step 3 of 5: the losses are .*'context': nan.*lower the learning rate"):
        run(model, poisoned, 5, tmp_path)

    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_metrics_name_losses_rates_and_gradients_by_part(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run(objective("ar"), batches("ar", tokenizer), 5, tmp_path)

    norms = {"gradient_norm", "gradient_norm_model", "gradient_norm_decoder"}
    assert set(lines(tmp_path)[0]) == {"step", "mlm", "context", "learning_rate"} | norms
    for metrics in lines(tmp_path):
        parts = math.hypot(metrics["gradient_norm_model"], metrics["gradient_norm_decoder"])
        assert metrics["gradient_norm"] == pytest.approx(parts, rel=1e-5)
    speeds = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    counted = batches("ar", tokenizer)(4)
    tokens = int(counted.text.mask.sum() + counted.context.mask.sum())  # type: ignore[attr-defined]
    assert speeds[4]["tokens_per_second"] / speeds[4]["rows_per_second"] == pytest.approx(tokens / 8)
    rates = [line["learning_rate"] for line in lines(tmp_path)]
    assert rates == pytest.approx([0, 3e-3, 3e-3 * 3 / 4, 3e-3 * 2 / 4, 3e-3 / 4])
    assert list((tmp_path / "logs" / "tensorboard").iterdir())


class Steep(nn.Module):
    """A loss of 0 whose gradient is not finite: the root at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def encode(self, batch: Examples) -> tuple[tuple[Tensor, ...], Losses]:
        """A local loss."""
        return (), {"root": self.weight.sqrt().sum()}

    def compare(self, vectors: tuple[Tensor, ...], batch: Examples) -> Losses:
        """Nothing."""
        return {}


@pytest.mark.parametrize("limit", [1.0, None])
def test_a_gradient_that_is_not_finite_stops_the_training_before_the_weights_are_spoilt(
    limit: float | None, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    steep = Steep()
    settings = FITTING.model_copy(update={"max_gradient_norm": limit})

    with pytest.raises(Diverged, match=r"step 1 of 2: .*norm is (inf|nan)"):
        fit(steep, batches("contrast", tokenizer), 2, out=tmp_path, settings=settings, seed=1)

    assert steep.weight.isfinite().all()
