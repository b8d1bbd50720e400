"""The recipes that an adaptation writes."""

from __future__ import annotations

from pathlib import Path

import yaml

from flows.adapt.recipes import SIZES, Start, recipe_content
from flows.recipe.load import load_recipe
from models.representation import Pooling
from tasks.retrieval.stated_model import StatedModel


def test_with_a_teacher_its_margins_are_learnt(tmp_path: Path) -> None:
    pooling: Pooling = "mean"
    stated = StatedModel(pooling=pooling, normalises=True)
    for teacher in (None, "the/teacher"):
        start = Start("a/start", stated, 128, teacher)
        file = tmp_path / "adapt.yaml"
        file.write_text(yaml.safe_dump({**recipe_content("texts", tmp_path, start, SIZES[0], "en"), "seed": 1}))

        recipe, _ = load_recipe(str(file))

        trained = [round_.train for round_ in recipe.rounds if round_.train is not None]
        assert len(trained) == 3
        for train in trained:
            assert (train.distillation.targets if train.distillation else None) == (teacher and "margins")
            assert train.passages_per_query == (4 if teacher else 2)
