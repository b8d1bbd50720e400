"""The definition of a matrix: its runs, their order and names, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from flows.matrix.planned_grid import PlannedGrid
from flows.recipe.grid import grid_of, seeds_of, split_values
from flows.recipe.shipped import SHIPPED
from storage.errors import UserError
from storage.store.store import Store


def test_a_grid_has_every_combination_seed_by_seed() -> None:
    grid = grid_of(
        ["quickstart", "small/cpdae"], [1, 2], ["split.max_tokens=64"], ["pretrain.steps=4,8", "split.titles=true"]
    )

    assert [cell.changes for cell in grid.cells][:2] == [
        ["split.max_tokens=64", "pretrain.steps=4", "split.titles=true", "seed=1"],
        ["split.max_tokens=64", "pretrain.steps=8", "split.titles=true", "seed=1"],
    ]
    assert [cell.seed for cell in grid.cells] == [1] * 4 + [2] * 4
    assert {cell.variant.recipe for cell in grid.cells} == {"quickstart", "small/cpdae"}
    assert len({cell.folder for cell in grid.cells}) == 8
    assert grid.command.startswith("pretrieve matrix quickstart small/cpdae --seeds 1,2 --vary pretrain.steps=4,8 ")


def test_the_command_of_a_grid_is_what_the_user_typed(tmp_path: Path) -> None:
    """Also with quotes, blanks and what a shell would expand."""
    recipe = tmp_path / "my recipe.yaml"
    recipe.write_text((SHIPPED / "quickstart.yaml").read_text())
    vary, change = "queries.generator='a b',\"c$HOME\"", "dataset.path=it's here"
    grid = grid_of([str(recipe)], [1, 2], [change], [vary], "mine")

    typed = ["pretrieve", "matrix", str(recipe), "--seeds", "1,2", "--vary", vary, "--set", change, "--name", "mine"]
    assert shlex.split(grid.command) == typed
    resumed = PlannedGrid(grid, Store(tmp_path / "my store"), []).command
    assert shlex.split(resumed) == [*typed, "--store", str(tmp_path / "my store")]


def test_further_seeds_keep_the_name_and_other_changes_do_not() -> None:
    assert grid_of(["quickstart"], [1], [], []).name == "quickstart"
    names = [
        grid_of(["small/cpdae"], seeds, changes, []).name for seeds in ([1], [1, 2]) for changes in ([], ["seed_x=1"])
    ]
    assert names[:2] == names[2:]
    assert names[0] == "small-cpdae" != names[1]
    assert grid_of(["quickstart"], [1], [], [], "nightly").name == "nightly"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", ["1", "2"]), ("[0, 1],[2]", ["[0, 1]", "[2]"]), ("{a: 1, b: 2},null", ["{a: 1, b: 2}", "null"]),
        ("'a,b',c", ["'a,b'", "c"]), ("\"'\",]x,y", ["\"'\"", "]x,y"]), ("", [""]),
    ],
)  # fmt: skip
def test_values_are_separated_by_commas_outside_of_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"recipes": []}, "a matrix needs a recipe and a seed"),
        ({"seeds": []}, "a matrix needs a recipe and a seed"),
        ({"recipes": ["quickstart"] * 2}, "RECIPE: quickstart is given twice"),
        ({"seeds": [1, 1]}, "--seeds: 1 is given twice"),
        ({"vary": ["pretrain.steps=4,4"]}, "--vary pretrain.steps: 4 is given twice"),
        ({"vary": ["pretrain.steps"]}, "--vary pretrain.steps: expected section.key=value,value"),
        ({"vary": ["pretrain.steps=4,"]}, "expected section.key=value,value"),
        ({"vary": ["pretrain.steps=4", "pretrain.steps=8"]}, "a setting is given twice"),
        ({"vary": ["seed=1,2"]}, "with --seeds"),
        ({"changes": ["seed=1"]}, "with --seeds"),
        ({"changes": ["pretrain.steps=1"], "vary": ["pretrain.steps=4"]}, "it is varied and set"),
        ({"seeds": list(range(1_001))}, "1,001 runs: expected at most 1,000"),
        ({"name": "../x"}, "--name ../x: expected letters"),
    ],
)
def test_an_impossible_matrix_is_refused(given: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        grid_of(**{"recipes": ["quickstart"], "seeds": [1], "changes": [], "vary": []} | given)  # type: ignore[arg-type]


def test_a_matrix_is_the_same_however_the_path_of_its_recipe_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)

    one, two = (grid_of([path], [1], ["a=b"], []) for path in ("mine.yaml", str(tmp_path / "mine.yaml")))

    assert one.name == two.name
    assert [cell.folder for cell in one.cells] == [cell.folder for cell in two.cells]


def test_recipes_that_the_grid_could_not_tell_apart_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.yaml" for folder in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.touch()

    with pytest.raises(UserError, match=r"one/mine.yaml and .*two/mine.yaml have the same name"):
        grid_of([str(file) for file in files], [1], [], [])
    assert len(grid_of([str(files[0]), "quickstart"], [1], [], []).cells) == 2


def test_seeds_are_whole_numbers() -> None:
    assert seeds_of("1,2,30") == [1, 2, 30]
    for text in ("", "1,", "a", "1.5", "-1"):
        with pytest.raises(UserError, match="expected whole numbers"):
            seeds_of(text)
