"""The claims of a study: what the papers say, the systems that test it, and the minimum detectable effect.

`configs/study/claims.yaml` fixes them before anything is run, the largest expected effect first. Each system (YAML key
`arms`) is a recipe and a row of its report; claims compare pairs of systems (YAML key `contrasts`).
`flows/study/run.py` runs what they need, and `tasks/evaluation/claim_verdicts.py` tests them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flows.recipe.load import load_recipe, read_settings
from flows.recipe.shipped import CLAIMS
from storage.errors import UserError, suggestion
from storage.results.paper_results import PAPERS
from storage.results.study_runs import Trial
from storage.settings import Seed, Settings
from tasks.evaluation.metrics import METRIC

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Fold = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]


class System(Settings):
    """A system that is trained and measured."""

    recipe: str
    """A shipped recipe, or the path of one."""
    row: Name | None
    """A row of the recipe's report; null where only the cost of its pre-training is compared."""

    @property
    def name(self) -> str:
        """The recipe's name in the results folder."""
        return Path(self.recipe).stem

    @property
    def words(self) -> str:
        """The recipe and the row, for messages."""
        return f"{self.name}/{self.row}" if self.row else self.name


class Comparison(Settings):
    """A comparison: the paper says that the system `arm` is better or cheaper than the system `than`."""

    arm: Name
    than: Name
    printed: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """The paper's values of the two systems in the claim's `printed_metric`."""


def dealt_trials(
    recipe: str, seeds: Sequence[int], folds: Sequence[int] | None, steps: int | None = None
) -> list[Trial]:
    """Return the runs of a recipe: one for each seed, which are dealt to the folds in turn."""
    return [Trial(recipe, seed, fold, steps) for seed, fold in zip(seeds, cycle(folds or [None]), strict=False)]


def check_folds(name: str, seeds: Sequence[int], folds: Sequence[int] | None) -> None:
    """Raise ValueError for seeds or folds that are given twice, or seeds of which some folds have more than others."""
    if folds and len(set(folds)) < len(folds):
        raise ValueError(f"{name}: folds: expected different folds, found {list(folds)}")
    if folds and (len(seeds) % len(folds) or len(set(seeds)) < len(seeds)):
        raise ValueError(
            f"{name}: seeds: expected different seeds, as many for every fold, so a multiple of {len(folds)}; found "
            f"{len(seeds)}"
        )


class Claim(Settings):
    """A testable statement of a paper."""

    name: Name
    statement: str
    """The claim in one sentence."""
    paper: str
    """The paper's name in `storage/reported_results.csv`."""
    source: str
    """The paper's table or section."""
    printed_metric: str | None
    """The paper's metric; null where it prints no numbers."""
    measures: Literal["quality", "cost of a step"] = "quality"
    collection: str
    """Collection and split, or with folds the collection, whose splits are called fold_K_train and fold_K_dev."""
    queries: Annotated[int, Field(gt=1)]
    """The number of queries of the split, or of all folds."""
    metric: Annotated[str, Field(pattern=METRIC.pattern)] | None
    """The metric of the test; null where a cost is measured."""
    seeds: Annotated[list[Seed], Field(min_length=1)]
    folds: Annotated[list[Fold], Field(min_length=2)] | None = None
    """The folds of a cross-validation; seeds are dealt to them in turn. Null for the recipes' own splits."""
    arms: Annotated[dict[Name, System], Field(min_length=2, max_length=4)]
    contrasts: Annotated[list[Comparison], Field(min_length=1)]
    smallest: Share | None
    """The minimum detectable effect at 80 % power (`tasks.evaluation.claim_verdicts.minimum_detectable_effect`)."""
    note: str | None = None
    """How the test differs from the paper's experiment, where this matters."""

    def bounded_effect(self, comparison: Comparison) -> float | None:
        """Return the difference that our interval can bound; None for no values, or values of another metric than ours.

        Without folds there is none either: questions on one article count as independent then, so that the interval is
        too narrow to exclude an effect.
        """
        if comparison.printed is None or self.folds is None or self.printed_metric != self.metric:
            return None
        return comparison.printed[0] - comparison.printed[1]

    def trials(self, recipe: str) -> list[Trial]:
        """Return the runs of a recipe that the claim needs: one for each seed."""
        return dealt_trials(recipe, self.seeds, self.folds)

    @model_validator(mode="after")
    def _folds_have_equal_numbers_of_seeds(self) -> Claim:
        check_folds(self.name, self.seeds, self.folds)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        for comparison in self.contrasts:
            if unknown := {comparison.arm, comparison.than} - set(self.arms):
                raise ValueError(f"{self.name}: {min(unknown)!r} is none of the arms {', '.join(self.arms)}")
            if comparison.printed and self.printed_metric is None:
                raise ValueError(f"{self.name}: numbers are printed; expected printed_metric")
        if self.paper not in PAPERS.values():
            raise ValueError(f"{self.name}: paper: expected one of {', '.join(PAPERS.values())}, found {self.paper!r}")
        if len({self.measures == "quality", self.metric is not None, self.smallest is not None}) > 1:
            raise ValueError(f"{self.name}: expected metric and smallest for a claim about quality, and only there")
        if any((system.row is None) == (self.metric is not None) for system in self.arms.values()):
            raise ValueError(f"{self.name}: expected a row of each arm for a claim about quality, else null")
        return self


class Curves(Settings):
    """Learning curves: systems after several numbers of pre-training steps, each with equal seeds and folds."""

    metric: Annotated[str, Field(pattern=METRIC.pattern)]
    rows: Annotated[dict[Name, str], Field(min_length=1)]
    """The rows of the recipes' reports that are drawn, with the words for each."""
    without: str
    """The recipe without pre-training, where all curves begin."""
    systems: Annotated[dict[str, str], Field(min_length=1)]
    """The recipe of each system."""
    steps: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    folds: Annotated[list[Fold], Field(min_length=2)] | None = None
    """As a claim's folds."""

    @model_validator(mode="after")
    def _folds_have_equal_numbers_of_seeds(self) -> Curves:
        check_folds("curves", self.seeds, self.folds)
        return self

    def trials(self, name: str, steps: int) -> list[Trial]:
        """Return the runs of a system with so many steps; for 0 those without pre-training."""
        if not steps:
            return dealt_trials(self.without, self.seeds, self.folds)
        return dealt_trials(self.systems[name], self.seeds, self.folds, steps)

    def runs(self) -> list[Trial]:
        """Return all runs, those with few steps first."""
        steps = (0, *sorted(self.steps))
        return list(dict.fromkeys(trial for n in steps for name in self.systems for trial in self.trials(name, n)))


class Study(Settings):
    """The claims, in the order in which they are tested, and the learning curves, which are run after them."""

    title: str
    description: str
    claims: Annotated[list[Claim], Field(min_length=1)]
    curves: Curves | None = None

    @model_validator(mode="after")
    def _named_once(self) -> Study:
        names = [claim.name for claim in self.claims]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"claims: the name {min(twice)!r} stands twice; give each its own")
        return self

    @property
    def family(self) -> int:
        """The number of comparisons that are corrected together for multiple testing."""
        return sum(len(claim.contrasts) for claim in self.claims if claim.measures == "quality")

    def chosen(self, names: Sequence[str]) -> list[Claim]:
        """Return the claims of these names, in the study's order; all claims where no name is given."""
        known = [claim.name for claim in self.claims]
        for name in names:
            if name not in known:
                raise UserError(f"--only {name}: the study has no claim of this name; {suggestion(name, known)}")
        return [claim for claim in self.claims if not names or claim.name in names]


def load_study(path: Path = CLAIMS) -> Study:
    """Return the study that a file describes."""
    return read_settings(path, (), lambda value, file: Study)


def runs(claims: Sequence[Claim]) -> list[Trial]:
    """Return the runs that the claims need, without duplicates, in the order of the claims, seed by seed."""
    by_seed = (zip(*(claim.trials(system.recipe) for system in claim.arms.values()), strict=True) for claim in claims)
    return list(dict.fromkeys(trial for trials in by_seed for trial in chain.from_iterable(trials)))


def measured_rows(study: Study, recipe: str) -> dict[str, list[str]]:
    """Return the rows of a recipe that claims compare, each with its metrics."""
    rows: dict[str, list[str]] = {}
    for claim in study.claims:
        for system in claim.arms.values():
            if system.recipe == recipe and system.row and claim.metric:
                metrics = rows.setdefault(system.row, [])
                if claim.metric not in metrics:
                    metrics.append(claim.metric)
    if study.curves and recipe in (study.curves.without, *study.curves.systems.values()):
        for row in study.curves.rows:
            rows[row] = list(dict.fromkeys([*rows.get(row, []), study.curves.metric]))
    return rows


def check(study: Study) -> None:
    """Raise UserError for rows and metrics that the recipes do not have, before anything is run."""
    names = {system.recipe for claim in study.claims for system in claim.arms.values()}
    recipes = {name: load_recipe(name) for name in sorted(names)}
    for claim in study.claims:
        for system in claim.arms.values():
            recipe, path = recipes[system.recipe]
            if system.row and system.row not in recipe.run_names():
                raise UserError(
                    f"{claim.name}: {path} has no row {system.row!r}; it has {', '.join(recipe.run_names())}"
                )
            if claim.metric and claim.metric not in recipe.evaluate.metrics:
                raise UserError(f"{claim.name}: {path} does not measure {claim.metric}; add it to evaluate.metrics")
            if system.row is None and recipe.pretrain is None:
                raise UserError(f"{claim.name}: {path} pre-trains nothing whose cost could be measured")
    if study.curves:
        _check_curves(study.curves)


def _check_curves(curves: Curves) -> None:
    for name in (curves.without, *curves.systems.values()):
        recipe, path = load_recipe(name)
        if unknown := set(curves.rows) - set(recipe.run_names()):
            raise UserError(f"curves: {path} has no row {min(unknown)!r}; it has {', '.join(recipe.run_names())}")
        if curves.metric not in recipe.evaluate.metrics:
            raise UserError(f"curves: {path} does not measure {curves.metric}; add it to evaluate.metrics")
        if (recipe.pretrain is None) != (name == curves.without):
            raise UserError(f"curves: {path}: expected pre-training in `systems`, and none in `without`")
