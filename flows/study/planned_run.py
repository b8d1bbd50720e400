"""A run of a study and its plan, so that the keys of what it builds are known before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import recipe_name
from storage.results.study_runs import Trial
from storage.store.store import Store
from tasks.job import Job
from tasks.session import Done


@dataclass(frozen=True)
class PlannedRun:
    """A run that claims need, and its plan."""

    trial: Trial
    recipe: Recipe[Any]
    title: str
    store: Store
    jobs: Mapping[str, Job]
    steps: Sequence[Done]

    @staticmethod
    def of(trial: Trial, store: Store, changes: Sequence[str] = ()) -> PlannedRun:
        """Plan a run, so that its report's key is known."""
        recipe, path = load_recipe(trial.recipe, [*trial.changes, *changes])
        title = recipe_name(path)
        plan = planned(recipe, title, store)
        return PlannedRun(trial, recipe, title, store, plan.jobs, list(plan.done.values()))

    @property
    def report(self) -> str:
        """The key of its report."""
        return next(step.key for step in reversed(self.steps) if step.stage == "report")

    @property
    def words(self) -> str:
        """The recipe, the fold and the seed, for messages."""
        return f"{self.title}, {self.trial.words}"
