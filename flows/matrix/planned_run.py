"""A run of a matrix or of a study, and its plan, so that the keys of what it builds are known before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flows.chain.given_models import check_models
from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from storage.store.lookup import missing_artifacts
from storage.store.store import Store
from tasks.job import Job
from tasks.session import Done


class RunDefinition(Protocol):
    """What defines a run: a cell of a matrix, or a trial of a study."""

    @property
    def recipe(self) -> str:
        """The recipe's name or path, as the user wrote it."""

    @property
    def changes(self) -> list[str]:
        """All changes of the recipe, as for `--set`."""


Definition = TypeVar("Definition", bound=RunDefinition)


@dataclass(frozen=True)
class PlannedRun(Generic[Definition]):
    """A run and its plan."""

    definition: Definition
    recipe: Recipe[Any]
    title: str
    jobs: Mapping[str, Job]
    steps: Sequence[Done]

    @staticmethod
    def of(
        definition: Definition, store: Store, changes: Sequence[str] = (), *, check: bool = False
    ) -> PlannedRun[Definition]:
        """Plan a run with further changes. `check` also opens the models that are read from outside the store.

        Raises UserError for a run that cannot work.
        """
        recipe, path = load_recipe(definition.recipe, [*definition.changes, *changes])
        title = recipe_name(path, fast=recipe.fast)
        plan = planned(recipe, title, store)
        if check:
            check_models(plan.jobs, plan)
        return PlannedRun(definition, recipe, title, plan.jobs, list(plan.done.values()))

    @property
    def report(self) -> str:
        """The key of its report."""
        return next(step.key for step in reversed(self.steps) if step.stage == "report")

    def missing(self, store: Store) -> list[str]:
        """Return the references of the stages that are still to be built."""
        return missing_artifacts(self.jobs, store)
