"""A smoke test of every recipe is a valid recipe with few steps, is marked as such, and leaves other keys alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import as_yaml
from flows.recipe.shipped import recipe_name, shipped_recipes
from flows.run_names import name_of_recipe_run
from flows.smoke_test import FAST, fast_changes
from storage.store import sources
from storage.store.store import Store
from tasks.session import Done


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_has_a_short_form(name: str) -> None:
    recipe, path = load_recipe(name, [FAST])
    complete, _ = load_recipe(name)

    assert recipe.title == f"Smoke test, no result: {complete.title}"
    assert recipe_name(path, fast=recipe.fast) == f"{name}-fast"
    assert {round_.train.steps for round_ in recipe.rounds if round_.train} <= {2}
    assert recipe.pretrain is None or (recipe.pretrain.steps, recipe.pretrain.probe) == (2, None)
    assert (recipe.transfer, recipe.claims, recipe.reported) == (None, None, {})
    assert "fast" not in yaml.safe_load(as_yaml(complete))


def test_what_the_user_states_wins() -> None:
    stated = ["pretrain.epochs=3", "pretrain.steps=null", "rounds.0.train.epochs=1", "rounds.0.train.steps=null"]
    recipe, _ = load_recipe("quickstart", [FAST, *stated, "title=Mine", "queries.generate.max_new_tokens=5"])

    assert recipe.pretrain is not None
    assert (recipe.pretrain.steps, recipe.pretrain.epochs, recipe.pretrain.batch) == (None, 3, 8)
    trainings = [round_.train for round_ in recipe.rounds if round_.train]
    assert [(training.steps, training.epochs) for training in trainings] == [(None, 1), (2, None), (2, None)]
    assert recipe.title == "Mine"
    assert recipe.queries is not None
    assert recipe.queries.generate is not None
    assert recipe.queries.generate.max_new_tokens == 5


def collection(folder: Path, documents: int) -> Path:
    """Write a collection in BEIR's layout with a relevant document of its own for each of a quarter of the queries."""
    (folder / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": f"d{n}", "title": "", "text": f"text {n}"}) for n in range(documents)]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    queries = [json.dumps({"_id": f"q{n}", "text": f"query {n}"}) for n in range(documents)]
    (folder / "queries.jsonl").write_text("\n".join(queries))
    for number, split in enumerate(("train", "dev")):
        lines = "".join(f"q{n}\td{n}\t1\n" for n in range(number, documents, 4))
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return folder


def test_a_large_collection_is_sliced_and_a_small_one_is_read_completely(tmp_path: Path) -> None:
    large, small = (f"dataset.path={collection(tmp_path / str(size), size)}" for size in (6_000, 400))

    assert fast_changes("small/beir", [large]) == [FAST, "dataset.fraction=0.1", large]
    assert fast_changes("small/beir", [small]) == [FAST, small]
    assert fast_changes("small/beir", [large, "dataset.fraction=0.9"]) == [FAST, large, "dataset.fraction=0.9"]
    assert fast_changes("small/beir", ["dataset.path=nowhere"]) == [FAST, "dataset.path=nowhere"]


def test_the_run_and_its_report_have_names_of_their_own(tmp_path: Path) -> None:
    def plan(*changes: str) -> list[Done]:
        recipe, path = load_recipe("quickstart", changes)
        with sources.assuming_present():
            return list(planned(recipe, recipe_name(path, fast=recipe.fast), Store.open_or_new(tmp_path)).done.values())

    complete, fast = ({(step.stage, step.round): step.key for step in plan(*changes)} for changes in ((), (FAST,)))

    assert name_of_recipe_run("quickstart", [FAST]) == "quickstart-fast seed=42"
    assert complete["split_corpus", ""] == fast["split_corpus", ""]
    assert complete["pretrain", ""] != fast["pretrain", ""]
    assert complete["report", ""] != fast["report", ""]
