"""A call that is written as JSON is made as it was."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from storage.artifact import Artifact, Source
from storage.settings import Settings
from tasks.runtime import remote_call

received: list[Any] = []


class Colour(StrEnum):
    RED = "red"


class Odd(Settings):
    """Values that JSON has no words for."""

    rates: tuple[float, ...]
    folder: Path
    colour: Colour
    tiny: float = 5e-324


def remember(out: Path, *inputs: Any, settings: Settings | None = None) -> None:
    """A body that keeps what it is given."""
    received[:] = [out, inputs, settings]


def called(*inputs: Any, settings: Settings | None = None) -> list[Any]:
    remote_call.call(json.loads(json.dumps(remote_call.as_json(remember, inputs, settings))), Path("out"))
    return received


def test_inputs_come_back() -> None:
    artifact, source = Artifact[Any]("train", "ab12", Path("/a b/ü")), Source("cd34", Path("relative"))

    assert called(artifact, source, None, [artifact, artifact], []) == [
        Path("out"), (artifact, source, None, [artifact, artifact], []), None
    ]  # fmt: skip


def test_artifacts_of_a_store_are_found_where_this_host_has_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    ours, elsewhere = Artifact[Any]("train", "ab12", here / "train" / "ab12"), Artifact[Any]("t", "k", Path("/else"))

    written = json.loads(json.dumps(remote_call.as_json(remember, (ours, [ours], elsewhere), None, here)))
    remote_call.call(written, Path("out"), root=there)

    moved = Artifact[Any]("train", "ab12", there / "train" / "ab12")
    assert received[1] == (moved, [moved], elsewhere)


def test_what_json_cannot_say_comes_back() -> None:
    odd = Odd(rates=(0.1, 1e-4), folder=Path("x"), colour=Colour.RED)

    assert called(settings=odd)[2] == odd


@pytest.mark.parametrize("name", ["cot_mae", "small/dup_mae", "small/cpdae", "small/came", "small/retrievers"])
def test_a_recipes_trainings_come_back(name: str) -> None:
    recipe, _ = load_recipe(name)

    for settings in (recipe.pretrain, *(round_.train for round_ in recipe.rounds)):
        back = called(settings=settings)[2]
        assert type(back) is type(settings)
        assert back == settings
        assert back.model_dump(mode="json") == settings.model_dump(mode="json")
