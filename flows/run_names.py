"""Names of runs in Prefect's UI: the recipe, its seed and its changes.

A name that the operator gave to a run is kept. Prefect gives every other run two random words, such as `modest-trout`,
and its form proposes names such as `Sleek-Zebra`; those are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from flows.form_names import proposed_by_form
from flows.recipe.load import load_recipe
from flows.recipe.shipped import find_recipe, recipe_name
from flows.smoke_test import FAST
from storage.errors import UserError

MAX_CHARACTERS = 160


def run_name(title: str, seed: int | None, changes: Sequence[str]) -> str:
    """Return the recipe's title, its seed, and its changes without that of the seed, in at most 160 characters."""
    others = [change for change in changes if not change.startswith("seed=")]
    parts = [title, *([] if seed is None else [f"seed={seed}"]), *others]
    text = " ".join(" ".join(parts).split())
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def name_of_recipe_run(recipe: str, changes: Sequence[str]) -> str:
    """Return the name of a run of a recipe; one that cannot be read has its given name and no seed."""
    try:
        settings, path = load_recipe(recipe, changes)
    except UserError:
        return run_name(recipe, None, changes)
    name = recipe_name(path, fast=settings.fast)  # which says that it is fast
    return run_name(name, settings.seed, [change for change in changes if change != FAST])


def name_of_suite_run(suite: str, models: Sequence[str]) -> str:
    """Return the name of an evaluation of models on a suite."""
    return run_name(suite, None, models)


def name_of_matrix_run(recipes: Sequence[str], seeds: Sequence[int], changes: Sequence[str]) -> str:
    """Return the name of a run of a matrix."""
    return run_name("matrix " + " ".join(map(_title, recipes)), None, [f"seeds={','.join(map(str, seeds))}", *changes])


def _title(recipe: str) -> str:
    """Return a recipe's name without its folder; one that does not exist has its given name."""
    try:
        return recipe_name(find_recipe(recipe))
    except UserError:
        return recipe


def name_of_current_run() -> str:
    """Return the name of the flow run of this process: the operator's own, or one that describes its parameters."""
    from prefect.runtime import flow_run

    name, parameters = str(flow_run.name), flow_run.parameters
    if not is_random(name):
        return name
    if suite := parameters.get("suite"):
        return name_of_suite_run(suite, parameters["models"])
    if "seeds" in parameters:
        changes = [*parameters.get("vary", []), *parameters.get("changes", [])]
        return name_of_matrix_run(parameters.get("recipes", []), parameters["seeds"], changes)
    fast = [FAST] if parameters.get("fast") else []
    return name_of_recipe_run(parameters["recipe"], [*fast, *parameters.get("changes", [])])


def is_random(name: str) -> bool:
    """Return whether Prefect's server or its form has drawn the name."""
    adjective, _, noun = name.partition("-")
    adjectives, nouns = _server_words()
    return proposed_by_form(name) or (adjective in adjectives and noun in nouns)


@cache
def _server_words() -> tuple[frozenset[str], frozenset[str]]:
    """Return the adjectives and the nouns of the names that Prefect's server draws, with the package coolname."""
    from coolname import data

    lists: dict[str, Any] = data.config
    adjectives, nouns = lists["an"]["lists"]
    return frozenset(_words(adjectives, lists)), frozenset(_words(nouns, lists))


def _words(name: str, lists: dict[str, Any]) -> Iterator[str]:
    """Yield the words of a list of coolname's configuration and of the lists that it is composed of."""
    for member in lists[name].get("lists", []):
        yield from _words(member, lists)
    yield from lists[name].get("words", [])
