"""The evaluation of a recipe's retrievers on other collections, without further training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from flows.chain.rankers import Bm25System, System
from flows.chain.retriever_rounds import Rounds
from flows.chain.suites import evaluate_collection, read
from flows.recipe.schema import Recipe
from flows.recipe.suite_schema import Suite, load_suite
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Metrics


def read_other_collections(recipe: Recipe[Any]) -> None:
    """Read the collections of the recipe's suite, so that their errors are reported before hours of work."""
    if (suite := suite_of(recipe)) is not None:
        with _as_transfer_error():
            for collection in suite.collections:
                read(suite, collection)


def transferred(recipe: Recipe[Any], rounds: Rounds) -> list[Artifact[Metrics]]:
    """Return the metrics on each collection of the recipe's suite, in the suite's order; none without a suite."""
    if recipe.transfer is None or (suite := suite_of(recipe)) is None:
        return []
    systems: dict[str, System] = {
        name: Bm25System(suite.bm25) if name == "bm25" else rounds.retrievers[name].retriever
        for name in recipe.transfer.rounds
    }
    with _as_transfer_error():
        return [evaluate_collection(suite, collection, systems) for collection in suite.collections]


def groups(recipe: Recipe[Any]) -> dict[str, str]:
    """Return the group of each collection of the recipe's suite that belongs to one."""
    suite = suite_of(recipe)
    return {collection.name: collection.group for collection in suite.collections if collection.group} if suite else {}


def suite_of(recipe: Recipe[Any]) -> Suite | None:
    """Return the suite that the recipe names, encoded in the recipe's precision where the suite states none.

    Returns None where the recipe names no suite.
    """
    if recipe.transfer is None:
        return None
    suite, _ = load_suite(recipe.transfer.suite)
    precision = suite.encode.precision or recipe.encode.precision
    return suite.model_copy(update={"encode": suite.encode.model_copy(update={"precision": precision})})


@contextlib.contextmanager
def _as_transfer_error() -> Iterator[None]:
    """Say that an error is about the recipe's section `transfer`, and how to go without it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"transfer: {error}; or measure only the recipe's own collection: transfer=null") from None
