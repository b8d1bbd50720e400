"""Trainings with the true shapes are rehearsed one after the other on the simulated device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.plan.costs import CostEstimate
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.rehearsal import true_shapes
from flows.rehearsal.true_shapes import TrueShapes, TrueStep
from storage.store import sources
from storage.store.store import Store
from tests.tiny import save_backbone

LENGTHS = (
    "pretrain.objective.max_tokens", "pretrain.objective.context_max_tokens", "encode.passage_max_tokens",
    *(f"rounds.{number}.train.{text}_max_tokens" for number in (0, 1) for text in ("query", "passage")),
)  # fmt: skip


@pytest.mark.usefixtures("simulated", "full_precision")
def test_a_training_follows_another_whose_encoder_it_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backbone").mkdir()
    changes = [
        "dataset.path=nowhere", f"backbone.weights={save_backbone(tmp_path / 'backbone')}", "backbone.layers=[0]",
        "pretrain.batch=2", "pretrain.steps=10", *(f"{length}=24" for length in LENGTHS),
        *(f"rounds.{number}.train.batch_queries=1" for number in (0, 1)),
    ]  # fmt: skip
    clock, known, computed = [0.0], set[tuple[str, int, int | None]](), true_shapes.gradients

    def gradients(objective: Any, batch: Any, chunk: int | None, *given: Any) -> Any:
        """Take 100 seconds for a new shape, and then one for each row."""
        shape = type(objective).__name__, len(batch), chunk
        clock[0] += len(batch) if shape in known else 100.0
        known.add(shape)
        return computed(objective, batch, chunk, *given)

    monkeypatch.setattr(true_shapes, "gradients", gradients)
    monkeypatch.setattr(true_shapes, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    recipe, path = load_recipe("cot_mae", changes)
    with sources.assuming_present():
        steps = list(planned(recipe, path.stem, Store.open_or_new(tmp_path / "planned")).done.values())
        shapes = TrueShapes(CostEstimate(recipe, steps), memory=10**9, limit=600.0)
        pretraining, first, _ = shapes.of(steps)

    assert isinstance(pretraining, TrueStep)
    assert isinstance(first, TrueStep)
    assert (pretraining.seconds, first.seconds) == (pretraining.rows, first.rows)
    assert {parameter.device for parameter in shapes.capacity.costs.encoder.parameters()} == {torch.device("cpu")}
