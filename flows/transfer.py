"""How well a recipe's retrievers do on other collections, as they are."""

from __future__ import annotations

from typing import Any

from flows.recipe import Recipe
from flows.rounds import Rounds
from flows.suite import ByRetriever, ByWords, Ranker, load_suite, measured
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Metrics


def transferred(recipe: Recipe[Any], rounds: Rounds) -> list[Artifact[Metrics]]:
    """What each collection of the recipe's suite says of its rounds, in the suite's order; nothing without a suite."""
    if recipe.transfer is None:
        return []
    suite, _ = load_suite(recipe.transfer.suite)
    rankers: dict[str, Ranker] = {}
    for name in recipe.transfer.rounds:
        if name == "bm25":
            rankers[name] = ByWords(suite.bm25)
        else:
            made = rounds.made[name]
            rankers[name] = ByRetriever(made.checkpoint, made.views, made.fusion)
    try:
        return [measured(suite, each, rankers) for each in suite.collections]
    except UserError as error:
        raise UserError(f"transfer: {error}; or measure the recipe's own collection alone: transfer=null") from None


def groups(recipe: Recipe[Any]) -> dict[str, str]:
    """The group that each collection of the recipe's suite is in, for those that are in one."""
    suite = load_suite(recipe.transfer.suite)[0] if recipe.transfer else None
    return {each.name: each.group for each in suite.collections if each.group} if suite else {}
