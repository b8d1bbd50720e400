"""The claims of a study: what the papers say, the systems that test it, and the minimum detectable effect.

`configs/study/claims.yaml` fixes each before the runs that it needs. Each system (YAML key `arms`) is a recipe and a
row of its report; claims compare pairs of systems (YAML key `contrasts`). `flows/study/order.py` orders their runs, and
`tasks/evaluation/claim_verdicts.py` tests them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flows.recipe.load import read_settings
from flows.recipe.shipped import CLAIMS, PROJECT
from flows.study.systems import (
    MIN_SEEDS,
    Curves,
    Folds,
    Name,
    SecondLook,
    Seeding,
    Share,
    System,
    check_distinct,
    trials_of,
)
from storage.errors import UserError, suggestion
from storage.results.paper_results import PAPERS
from storage.results.study_runs import Trial
from storage.settings import Seed, Settings
from tasks.evaluation.metrics import METRIC

RESULTS = PROJECT / "results" / "study"
"""The stored results of the study's runs."""


class Comparison(Settings):
    """A comparison: the paper says that the system `arm` is better or cheaper than the system `than`."""

    arm: Name
    than: Name
    printed: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """The paper's values of the two systems in the claim's `printed_metric`."""
    expected: Share | None = None
    """The difference that the pilot suggests, in the claim's own metric; null where no pilot measured it."""
    second: SecondLook | None = None
    """Further runs where the first did not decide; null for the claim's own runs only."""


class Claim(Settings):
    """A testable statement of a paper."""

    name: Name
    statement: str
    """The claim in one sentence."""
    paper: str | None
    """The paper's name in `storage/reported_results.csv`; null for a question of ours."""
    source: str | None
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
    folds: Folds | None = None
    """The folds; null for the recipes' own splits."""
    seeding: Seeding = "every fold"
    arms: Annotated[dict[Name, System], Field(min_length=2, max_length=6)]
    contrasts: Annotated[list[Comparison], Field(min_length=1)]
    smallest: Share | None
    """The minimum detectable effect at 80 % power (`tasks.evaluation.claim_verdicts.minimum_detectable_effect`)."""
    note: str | None = None
    """How the test differs from the paper's experiment, where this matters."""

    def bounded_effect(self, comparison: Comparison) -> float | None:
        """Return the difference that our interval can bound; None for no values, or values of another metric than ours.

        Without folds there is none either, since the interval then excludes no variation of the train queries.
        """
        if comparison.printed is None or self.folds is None or self.printed_metric != self.metric:
            return None
        return comparison.printed[0] - comparison.printed[1]

    def trials(self, system: System) -> list[Trial]:
        """Return the runs of a system that the claim needs, fold by fold, without those of a second look."""
        return trials_of(system.recipe, self.seeds, self.folds, system.steps, self.seeding)

    @property
    def all_trials(self) -> list[Trial]:
        """All runs that the claim needs, each once: the first looks', then the second looks'."""
        first = [trial for system in self.arms.values() for trial in self.trials(system)]
        second = [
            trial for pair in self.contrasts if pair.second
            for name in (pair.arm, pair.than) for trial in pair.second.trials(self.arms[name])
        ]  # fmt: skip
        return list(dict.fromkeys([*first, *second]))

    @model_validator(mode="after")
    def _seeds_suffice_in_folds(self) -> Claim:
        check_distinct(self.name, self.seeds, self.folds)
        if self.folds and len(self.seeds) < MIN_SEEDS:
            raise ValueError(f"{self.name}: seeds: expected {MIN_SEEDS} or more with folds, found {len(self.seeds)}")
        if self.seeding == "in turn" and (not self.folds or len(self.folds) % len(self.seeds)):
            raise ValueError(f"{self.name}: seeds in turn: expected as many folds for each of {len(self.seeds)} seeds")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        for comparison in self.contrasts:
            if unknown := {comparison.arm, comparison.than} - set(self.arms):
                raise ValueError(f"{self.name}: {min(unknown)!r} is none of the arms {', '.join(self.arms)}")
            if comparison.printed and self.printed_metric is None:
                raise ValueError(f"{self.name}: numbers are printed; expected printed_metric")
            if (second := comparison.second) and (
                not self.folds or {*self.seeds} & {*second.seeds} or {*self.folds} & {*second.folds}
            ):
                raise ValueError(f"{self.name}: second: expected other seeds and folds than those of the claim")
        looks = [comparison.second for comparison in self.contrasts if comparison.second]
        if looks and (self.measures != "quality" or any(look != looks[0] for look in looks)):
            raise ValueError(f"{self.name}: second: expected one second look, of a claim about quality")
        if (self.paper is None) != (self.source is None):
            raise ValueError(f"{self.name}: expected paper and source, or null for both")
        if self.paper is not None and self.paper not in PAPERS.values():
            raise ValueError(f"{self.name}: paper: expected one of {', '.join(PAPERS.values())}, found {self.paper!r}")
        if len({self.measures == "quality", self.metric is not None, self.smallest is not None}) > 1:
            raise ValueError(f"{self.name}: expected metric and smallest for a claim about quality, and only there")
        if any((system.row is None) == (self.metric is not None) for system in self.arms.values()):
            raise ValueError(f"{self.name}: expected a row of each arm for a claim about quality, else null")
        return self


class Block(Settings):
    """Claims whose runs are done together, since they share artifacts."""

    claims: Annotated[list[Name], Field(min_length=1)]
    first: Literal["seed", "fold"] = "seed"
    """All runs of a seed come before the next seed, whose pre-training folds share; or all of a fold, whose query
    generator seeds share."""


class Dropped(Settings):
    """A claim of the papers that the study does not test."""

    statement: str
    reason: str


class Advice(Settings):
    """The meaning of a comparison for a user, in sentences that are fixed before its result is known."""

    claim: Name
    arm: Name
    than: Name
    asks: str
    """The user's question; the answer until all runs are kept is how many are."""
    supported: str
    contradicted: str
    undecided: str


class Study(Settings):
    """The claims, the order in which their runs are done, and the learning curves, which are run after them."""

    title: str
    description: str
    claims: Annotated[list[Claim], Field(min_length=1)]
    order: list[Block] = Field(default_factory=list)
    """Empty for the order of the claims, one after the other."""
    dropped: list[Dropped] = Field(default_factory=list)
    question: str = ""
    advice: list[Advice] = Field(default_factory=list)
    """The answers to the question, with which the page of results begins."""
    curves: Curves | None = None

    @model_validator(mode="after")
    def _named_once(self) -> Study:
        names = [claim.name for claim in self.claims]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"claims: the name {min(twice)!r} is given twice; give each its own")
        ordered = [name for block in self.order for name in block.claims]
        if self.order and sorted(ordered) != sorted(names):
            raise ValueError(f"order: expected each claim once: {', '.join(names)}; found {', '.join(ordered)}")
        return self

    @model_validator(mode="after")
    def _advice_is_about_comparisons(self) -> Study:
        known = {(claim.name, pair.arm, pair.than) for claim in self.claims for pair in claim.contrasts}
        for advice in self.advice:
            if (advice.claim, advice.arm, advice.than) not in known:
                raise ValueError(f"advice: {advice.claim} does not compare {advice.arm} with {advice.than}")
        return self

    @property
    def family(self) -> int:
        """The number of comparisons that are corrected together for multiple testing."""
        return sum(len(claim.contrasts) for claim in self.claims if claim.measures == "quality")

    @property
    def blocks(self) -> list[Block]:
        """The blocks in their order."""
        return self.order or [Block(claims=[claim.name]) for claim in self.claims]

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
