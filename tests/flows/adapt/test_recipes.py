"""The recipes that an adaptation writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from flows.adapt.recipes import SIZES, Size, Start, recipe_content
from flows.recipe.load import load_recipe
from models.representation import Pooling
from tasks.retrieval.stated_model import StatedModel


def test_a_teacher_adds_a_round_that_learns_its_margins_and_changes_no_other(tmp_path: Path) -> None:
    pooling: Pooling = "mean"
    stated = StatedModel(pooling=pooling, normalises=True)

    def rounds(size: Size, teacher: str | None) -> dict[str, Any]:
        file, start = tmp_path / "adapt.yaml", Start("a/start", stated, 128, teacher)
        file.write_text(yaml.safe_dump({**recipe_content("texts", tmp_path, start, size, "en"), "seed": 1}))
        recipe, _ = load_recipe(str(file))
        trained = {round_.name: round_ for round_ in recipe.rounds if round_.train is not None}
        assert list(trained) == size.candidates(teacher)
        return trained

    for size in SIZES:
        plain, taught = rounds(size, None), rounds(size, "the/teacher")
        distilled = taught.pop("adapted_distilled")
        assert taught == plain
        assert distilled.train.distillation.targets == "margins"
        assert distilled.train.passages_per_query == 4
        assert distilled.start == ("pretrained" if size.pretraining_steps else "backbone")
        assert distilled.mine_with == ("adapted_bm25" if size.mines else "bm25")
