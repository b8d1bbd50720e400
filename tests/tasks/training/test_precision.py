"""Training in bfloat16, and in float16 with loss scaling, on the CPU."""

import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from models.tokens import Tokenizer
from storage.artifact import key_of
from tasks.runtime.work_folder import CHECKPOINTS
from tasks.training import checkpoints, loop
from tasks.training.optimiser import OptimisationSettings
from tests.tasks.pairs_of_words import SETTINGS as GENERATOR
from tests.tasks.training.small_objectives import FITTING, Breaking, BrokenOff, batches, equal, lines, objective, run

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_is_near_float32_and_resumes_exactly(
    precision: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_of, fitting = batches("contrast", tokenizer), FITTING.model_copy(update={"precision": precision, "chunk": 3})
    run(objective("contrast"), batch_of, 6, tmp_path / "float32", fitting=FITTING.model_copy(update={"chunk": 3}))
    unbroken = run(objective("contrast"), batch_of, 6, tmp_path / "unbroken", fitting=fitting)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with pytest.raises(BrokenOff):
        run(objective("contrast"), Breaking(batch_of, 5), 6, tmp_path / "broken", fitting=fitting)
    saved = tmp_path / "broken" / CHECKPOINTS / "000000004" / checkpoints.OPTIMISER
    with safe_open(saved, "pt") as file:
        assert ("scaler.scale" in file.keys()) == (precision == "float16")  # noqa: SIM118
    resumed = run(objective("contrast"), batch_of, 6, tmp_path / "broken", fitting=fitting)

    assert equal(unbroken, resumed)
    ours, exact = (lines(tmp_path / name) for name in ("unbroken", "float32"))
    differences = [abs(one["contrastive"] - other["contrastive"]) for one, other in zip(ours, exact, strict=True)]
    assert 0 < max(differences) < 0.05
    assert all(math.isfinite(line["contrastive"]) for line in ours)


def test_skipped_steps_are_counted_and_have_no_gradient_norm(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """At first the loss scale of 65,536 makes gradients infinite; each skipped step halves it."""
    module, fitting = objective("contrast"), FITTING.model_copy(update={"precision": "float16"})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(4.0)

    run(module, batches("contrast", tokenizer), 6, tmp_path, fitting=fitting)

    log = (tmp_path / "logs" / "metrics.jsonl").read_text()
    logged = lines(tmp_path)
    assert "NaN" not in log
    assert "Infinity" not in log
    assert sum(line["skipped_steps"] for line in logged) >= 1
    assert [line["skipped_steps"] == 0 for line in logged] == ["gradient_norm" in line for line in logged]
    scales = [line["loss_scale"] for line in logged]
    assert scales[1:] == [
        line["loss_scale"] / 2 if line["skipped_steps"] else line["loss_scale"] for line in logged[:-1]
    ]


def test_the_default_precision_is_in_no_key() -> None:
    assert "precision" not in FITTING.model_dump()
    assert OptimisationSettings(**FITTING.model_dump(), precision="bfloat16").model_dump()["precision"] == "bfloat16"


def test_a_stated_precision_is_in_the_key() -> None:
    """The validation of a query generator has it too, so one key means one content on a device."""
    fits = [FITTING.model_copy(update={"precision": precision}) for precision in (None, "float32", "bfloat16")]
    dumped = [GENERATOR.model_copy(update={"fit": fit}).model_dump(mode="json") for fit in fits]

    assert len({key_of("finetune_generator", 1, settings, {}) for settings in dumped}) == 3
    assert "precision" not in dumped[0]["fit"]
