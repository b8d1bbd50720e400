"""A batch is trained in one piece where the memory suffices."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flows.adapt import chunk
from flows.adapt.recipes import SIZES, Start, recipe_content
from flows.plan.costs import costs_of_models
from flows.recipe.load import load_recipe
from tasks.estimates.capacity import Capacity
from tasks.retrieval.stated_model import StatedModel
from tests.tiny import save_backbone


@pytest.mark.parametrize("teacher", [False, True])
def test_the_largest_training_takes_half_of_the_free_memory_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, teacher: bool
) -> None:
    (folder := tmp_path / "start").mkdir()
    save_backbone(folder, pooling="mean")
    start = Start(str(folder), StatedModel(pooling="mean", normalises=True), 64, str(folder) if teacher else None, 64)
    file = tmp_path / "adapt.yaml"
    file.write_text(yaml.safe_dump({**recipe_content("texts", tmp_path, start, SIZES[0], "en"), "seed": 1}))
    recipe, _ = load_recipe(str(file))
    trainings = [round_.train for round_ in recipe.rounds if round_.train is not None]
    capacity = Capacity(costs_of_models(recipe, with_dropout=True)[0], default="float32")
    peaks = {training.passages_per_query: capacity.training(training).peak(32, None) for training in trainings}
    assert sorted(peaks) == ([2, 4] if teacher else [2])  # the distilled round is the largest, with 4 passages
    assert peaks[max(peaks)] == max(peaks.values())
    needed = 2 * max(peaks.values())

    def chunk_with(memory: int | None, gpus: int = 0) -> int | None:
        monkeypatch.setattr(chunk, "free_memory", lambda: memory)
        monkeypatch.setattr(chunk, "num_gpus", lambda: gpus)
        return chunk.chunk_that_fits(file)

    assert chunk_with(needed) is None
    assert chunk_with(needed - 2) == 16
    assert chunk_with(None) == 16  # a system that does not state it
    assert chunk_with(needed, gpus=1) == 16
