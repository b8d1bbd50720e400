"""Names of runs in Prefect's UI: the recipe, its seed and its changes.

A name that the operator gave to a run is kept. Prefect gives every other run two random words, such as `modest-trout`,
and its form proposes names such as `Sleek-Zebra`; those are replaced, and so are names of the operator that look like
them, such as `Small-Test`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from flows.recipe.load import load_recipe
from flows.recipe.shipped import recipe_name
from storage.errors import UserError

MAX_CHARACTERS = 160
# The adjectives of the names that Prefect's form proposes; an animal of at most six letters follows.
FORM_ADJECTIVES = (
    "Awesome", "Rustic", "Small", "Gorgeous", "Fantastic", "Sleek", "Intelligent", "Unbranded", "Refined", "Licensed",
    "Generic", "Practical", "Ergonomic", "Handcrafted", "Tasty", "Handmade", "Incredible",
)  # fmt: skip
FROM_FORM = re.compile(rf"(?:{'|'.join(FORM_ADJECTIVES)})-[A-Z][A-Za-z ]{{1,5}}")


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
    return run_name(recipe_name(path), settings.seed, changes)


def name_of_suite_run(suite: str, models: Sequence[str]) -> str:
    """Return the name of an evaluation of models on a suite."""
    return run_name(suite, None, models)


def name_of_current_run() -> str:
    """Return the name of the flow run of this process: the operator's own, or one that describes its parameters."""
    from prefect.runtime import flow_run

    name, parameters = str(flow_run.name), flow_run.parameters
    if not is_random(name):
        return name
    if suite := parameters.get("suite"):
        return name_of_suite_run(suite, parameters["models"])
    return name_of_recipe_run(parameters["recipe"], parameters.get("changes", []))


def is_random(name: str) -> bool:
    """Return whether Prefect's server or its form has drawn the name."""
    words = name.split("-")
    return bool(FROM_FORM.fullmatch(name)) or (len(words) == 2 and set(words) <= _server_words())


@cache
def _server_words() -> frozenset[str]:
    """Return the words of the names that Prefect's server draws, with the package coolname."""
    from coolname import data

    lists: dict[str, Any] = data.config
    return frozenset(_words("2", lists))


def _words(name: str, lists: dict[str, Any]) -> Iterator[str]:
    """Yield the words of a list of coolname's configuration and of the lists that it is composed of."""
    for member in lists[name].get("lists", []):
        yield from _words(member, lists)
    yield from lists[name].get("words", [])
