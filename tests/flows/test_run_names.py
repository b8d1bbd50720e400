"""The names of runs: what they show, which are kept, and which count as Prefect's own."""

from __future__ import annotations

import re
from pathlib import Path

import prefect
import pytest
from prefect.utilities.names import generate_slug

from flows.form_names import ADJECTIVES, ANIMALS
from flows.recipe.shipped import SHIPPED
from flows.run_names import MAX_CHARACTERS, is_random, name_of_matrix_run, name_of_recipe_run, name_of_suite_run
from flows.smoke_test import FAST


def test_a_name_has_recipe_seed_and_changes() -> None:
    assert name_of_recipe_run("quickstart", []) == "quickstart seed=42"
    assert name_of_recipe_run("cot_mae", ["seed=7", "pretrain.steps=12"]) == "cot_mae seed=7 pretrain.steps=12"
    assert name_of_recipe_run("cot_mae", [FAST, "seed=7"]) == "cot_mae-fast seed=7"
    assert name_of_suite_run("small", ["bm25", "a=b"]) == "small bm25 a=b"
    assert name_of_matrix_run(["quickstart"], [1, 2], ["a=b,c"]) == "matrix quickstart seeds=1,2 a=b,c"
    file = str(SHIPPED / "small" / "cpdae.yaml")
    assert name_of_matrix_run([file, "none"], [1], []) == "matrix small/cpdae none seeds=1"


def test_a_recipe_that_cannot_be_read_still_has_a_name() -> None:
    assert name_of_recipe_run("no-such", ["pretrain.steps=x"]) == "no-such pretrain.steps=x"
    assert name_of_recipe_run("quickstart", ["nothing=1"]) == "quickstart nothing=1"


def test_a_long_name_is_cut() -> None:
    name = name_of_recipe_run("quickstart", [f"title={'x' * 500}"])

    assert len(name) == MAX_CHARACTERS
    assert name.endswith("x…")


def test_names_that_the_server_draws_are_known() -> None:
    assert all(is_random(generate_slug(2)) for _ in range(500))


@pytest.mark.parametrize("name", ["Sleek-Zebra", "Handmade-Dingo", "Rustic-Ox"])
def test_names_that_the_form_proposes_are_known(name: str) -> None:
    assert is_random(name)


def test_the_words_of_the_form_are_those_of_its_page() -> None:
    pages = Path(prefect.__file__).parent / "server" / "ui-v2" / "assets"
    [page] = [text for file in pages.glob("deployment_*run-*.js") if "`Aardvark." in (text := file.read_text())]

    animals = page.partition("`Aardvark.")[2].partition("`")[0].split(".")
    assert {name for name in animals if len(name) <= 6} == ANIMALS
    listed = re.search(r"\[(`Awesome`[^\]]*)\]", page)
    assert listed
    assert set(listed[1].replace("`", "").split(",")) == ADJECTIVES


@pytest.mark.parametrize(
    "name",
    [
        "nightly-quickstart",
        "Sleek",
        "quickstart seed=42",
        "before-the-upgrade",
        "Small-Test",
        "Generic-Cpu",
        "Small-scale test",
        "red-blue",
        "",
    ],
)
def test_an_operators_names_are_not_drawn(name: str) -> None:
    assert not is_random(name)
