"""The rehearsal of every recipe is a recipe; its collection is one that the BEIR loader reads."""

from pathlib import Path

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from flows.rehearsal.changes import changes_for
from flows.rehearsal.synthetic import Size, Splits, write_collection, write_tokenizer
from models.tokens import Tokenizer
from storage.datasets import beir

LARGE = [name for name in shipped_recipes() if "/" not in name]


@pytest.mark.parametrize("name", LARGE)
def test_the_rehearsal_of_a_recipe_is_valid_and_short(name: str, tmp_path: Path) -> None:
    recipe, _ = load_recipe(name)
    rehearsed, _ = load_recipe(name, changes_for(recipe, tmp_path))

    assert rehearsed.dataset.reader == "beir"
    trainings = [round_.train for round_ in rehearsed.rounds if round_.train]
    assert {training.steps for training in trainings} <= {2}
    assert not any(hasattr(analysis, "weights") for analysis in rehearsed.analyses)
    assert [round_.name for round_ in rehearsed.rounds] == [round_.name for round_ in recipe.rounds]


def test_the_collection_has_queries_for_each_split(tmp_path: Path) -> None:
    folder = tmp_path / "collection"

    write_collection(folder, ["tide", "moon", "sand"], Size(1000), Splits("train", ["dev", "dl19"]))

    assert sum(1 for _ in beir.texts(folder, "corpus")) == 1000
    assert sum(1 for _ in beir.texts(folder, "documents")) == 334
    assert sum(1 for _ in beir.queries(folder, "train")) == 63
    assert sum(1 for _ in beir.qrels(folder, "train")) == 63
    assert sum(1 for _ in beir.qrels(folder, "dev")) == sum(1 for _ in beir.qrels(folder, "dl19")) == 50


def test_the_tokenizer_has_the_words_of_the_collection_as_tokens(tmp_path: Path) -> None:
    words = write_tokenizer(tmp_path / "tokenizer")

    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    assert len(words) == 2000
    assert {len(ids) for ids in tokenizer.token_ids(words)} == {1}
    (unknown,) = tokenizer.token_ids(["zyzzyva"])
    assert len(unknown) == len("zyzzyva")
    assert tokenizer.token_id("[UNK]") not in unknown
