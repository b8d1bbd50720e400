"""The systems of a study, their runs, and the learning curves that they are drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from storage.results.study_runs import Trial
from storage.settings import Seed, Settings
from tasks.evaluation.metrics import METRIC

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Fold = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Folds = Annotated[list[Fold], Field(min_length=3)]
"""The folds of a cross-validation. With two the 95 % interval has the mean in as few as 88 of 100 studies."""
MIN_SEEDS = 3
"""In all folds. With two the interval has the mean in 92 of 100 studies where seeds vary, and hardly any power."""


class System(Settings):
    """A system that is trained and measured."""

    recipe: str
    """A shipped recipe, or the path of one."""
    row: Name | None
    """A row of the recipe's report; null where only the cost of its pre-training is compared."""

    steps: Annotated[int, Field(gt=0)] | None = None
    """The number of pre-training steps; null for the recipe's own."""
    pretrained: bool = True
    """Whether the row's round starts from the pre-trained weights."""

    @property
    def words(self) -> str:
        """The recipe and the row, for messages."""
        steps = f"/steps-{self.steps}" if self.steps else ""
        return Path(self.recipe).stem + steps + (f"/{self.row}" if self.row else "")


Seeding = Literal["every fold", "in turn"]
"""`every fold`: every seed is a run in every fold. `in turn`: every fold is one run, and the seeds take turns."""


def trials_of(
    recipe: str, seeds: Sequence[int], folds: Sequence[int] | None, steps: int | None = None,
    seeding: Seeding = "every fold",
) -> list[Trial]:  # fmt: skip
    """Return the runs of a recipe, fold by fold."""
    splits: Sequence[int | None] = folds or [None]
    pairs = product(splits, seeds) if seeding == "every fold" else zip(splits, cycle(seeds), strict=False)
    return [Trial(recipe, seed, fold, steps) for fold, seed in pairs]


class SecondLook(Settings):
    """Further runs of a comparison, fixed when its first result was known: seeds that take turns over other folds."""

    seeds: Annotated[list[Seed], Field(min_length=MIN_SEEDS)]
    folds: Folds

    @model_validator(mode="after")
    def _consistent(self) -> SecondLook:
        check_distinct("second", self.seeds, self.folds)
        if len(self.folds) % len(self.seeds):
            raise ValueError(f"second: expected as many folds for each of {len(self.seeds)} seeds")
        return self

    def trials(self, system: System) -> list[Trial]:
        """Return the further runs of a system, fold by fold."""
        return trials_of(system.recipe, self.seeds, self.folds, system.steps, "in turn")


def check_distinct(name: str, seeds: Sequence[int], folds: Sequence[int] | None) -> None:
    """Raise ValueError for seeds or folds that are given twice."""
    for kind, numbers in (("seeds", seeds), ("folds", folds or [])):
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{name}: {kind}: expected different {kind}, found {list(numbers)}")


class DrawnSystem(Settings):
    """A system of the learning curves."""

    recipe: str
    steps: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    """The numbers of pre-training steps, one of them perhaps the recipe's own."""


class Curves(Settings):
    """Learning curves: systems after several numbers of pre-training steps, each with equal seeds and folds."""

    metric: Annotated[str, Field(pattern=METRIC.pattern)]
    rows: Annotated[dict[Name, str], Field(min_length=1)]
    """The rows of the recipes' reports that are drawn, with the words for each."""
    without: dict[Name, System]
    """For each row the system without pre-training, where all curves begin."""
    systems: Annotated[dict[str, DrawnSystem], Field(min_length=1)]
    own_steps: Annotated[int, Field(gt=0)]
    """The recipes' own number of steps, whose runs claims with the same folds have too."""
    seeds: Annotated[list[Seed], Field(min_length=1)]
    folds: Folds | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Curves:
        check_distinct("curves", self.seeds, self.folds)
        if set(self.without) != set(self.rows):
            raise ValueError(f"curves: without: expected a system for each of the rows {', '.join(self.rows)}")
        return self

    def trials(self, name: str, steps: int) -> list[Trial]:
        """Return the runs of a system with a number of steps."""
        changed = None if steps == self.own_steps else steps
        return trials_of(self.systems[name].recipe, self.seeds, self.folds, changed)

    def trials_without(self, row: str) -> list[Trial]:
        """Return the runs that have a row without pre-training."""
        system = self.without[row]
        return trials_of(system.recipe, self.seeds, self.folds, system.steps)
