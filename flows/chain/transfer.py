"""How well a recipe's retrievers do on other collections, as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from flows.chain.retriever_rounds import Rounds
from flows.chain.suites import ByRetriever, ByWords, Ranker, Suite, load_suite, measured, read
from flows.recipe.schema import Recipe
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Metrics


def read_elsewhere(recipe: Recipe[Any]) -> None:
    """Read the collections of the recipe's suite: what is wrong with one is told before hours of work."""
    if (suite := suite_of(recipe)) is not None:
        with _named():
            for each in suite.collections:
                read(suite, each)


def transferred(recipe: Recipe[Any], rounds: Rounds) -> list[Artifact[Metrics]]:
    """What each collection of the recipe's suite says of its rounds, in the suite's order; nothing without a suite."""
    if recipe.transfer is None or (suite := suite_of(recipe)) is None:
        return []
    rankers: dict[str, Ranker] = {}
    for name in recipe.transfer.rounds:
        if name == "bm25":
            rankers[name] = ByWords(suite.bm25)
        else:
            made = rounds.made[name]
            rankers[name] = ByRetriever(made.checkpoint, made.views, made.fusion)
    with _named():
        return [measured(suite, each, rankers) for each in suite.collections]


def groups(recipe: Recipe[Any]) -> dict[str, str]:
    """The group that each collection of the recipe's suite is in, for those that are in one."""
    suite = suite_of(recipe)
    return {each.name: each.group for each in suite.collections if each.group} if suite else {}


def suite_of(recipe: Recipe[Any]) -> Suite | None:
    """The suite that the recipe names."""
    return load_suite(recipe.transfer.suite)[0] if recipe.transfer else None


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"transfer: {error}; or measure the recipe's own collection alone: transfer=null") from None
