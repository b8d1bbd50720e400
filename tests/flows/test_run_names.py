"""The names of runs: what they show, which are kept, and which count as Prefect's own."""

from __future__ import annotations

import pytest
from prefect.utilities.names import generate_slug

from flows.run_names import MAX_CHARACTERS, is_random, name_of_recipe_run, name_of_suite_run


def test_a_name_has_recipe_seed_and_changes() -> None:
    assert name_of_recipe_run("quickstart", []) == "quickstart seed=42"
    assert name_of_recipe_run("cot_mae", ["seed=7", "pretrain.steps=12"]) == "cot_mae seed=7 pretrain.steps=12"
    assert name_of_suite_run("small", ["bm25", "a=b"]) == "small bm25 a=b"


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


@pytest.mark.parametrize(
    "name", ["nightly-quickstart", "Sleek", "quickstart seed=42", "before-the-upgrade", "Small-scale test", ""]
)
def test_an_operators_names_are_not_drawn(name: str) -> None:
    assert not is_random(name)
