"""The claims of a study: what the papers say, on what it is tested, and the smallest difference that can be shown.

`configs/study/claims.yaml` names them before anything is run, the largest expected effect first; each arm is a recipe
and a row of its report. What is measured and found is `flows/study/run.py` and `tasks/evaluation/claim_verdicts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flows.recipe.load import load_recipe, read_settings
from flows.recipe.shipped import CLAIMS
from storage.errors import UserError, suggestion
from storage.results.paper_results import PAPERS
from storage.settings import Seed, Settings
from tasks.evaluation.evaluate import METRIC

Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
Share = Annotated[float, Field(gt=0, lt=1)]


class Arm(Settings):
    """What is trained and measured."""

    recipe: str
    """A shipped recipe, or the path of one."""
    row: Name | None
    """Of its report; null where only its pre-training's cost is looked at."""

    @property
    def name(self) -> str:
        """What its results are filed under."""
        return Path(self.recipe).stem

    @property
    def words(self) -> str:
        """Recipe and row."""
        return f"{self.name}/{self.row}" if self.row else self.name


class Against(Settings):
    """One arm is said to be better than another, or cheaper."""

    arm: Name
    than: Name
    printed: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """What the paper prints for the two, in the claim's `printed_metric`."""


class Claim(Settings):
    """A sentence of a paper that can be right or wrong."""

    name: Name
    statement: str
    """In one sentence."""
    paper: str
    """As `storage/reported_results.csv` calls it."""
    source: str
    """Its table or section."""
    printed_metric: str | None
    """What the paper measures it by; null where it prints no numbers."""
    measures: Literal["quality", "cost of a step"] = "quality"
    collection: str
    """Collection and split."""
    queries: Annotated[int, Field(gt=1)]
    """How many there are."""
    metric: Annotated[str, Field(pattern=METRIC.pattern)] | None
    """Null where a cost is measured."""
    seeds: Annotated[list[Seed], Field(min_length=1)]
    arms: Annotated[dict[Name, Arm], Field(min_length=2, max_length=4)]
    contrasts: Annotated[list[Against], Field(min_length=1)]
    smallest: Share | None
    """The smallest difference that 80 % of such studies show (`tasks.evaluation.claim_verdicts.smallest`)."""
    note: str | None = None
    """How the test differs from the paper's, where it matters."""

    @model_validator(mode="after")
    def _consistent(self) -> Claim:
        for each in self.contrasts:
            if unknown := {each.arm, each.than} - set(self.arms):
                raise ValueError(f"{self.name}: {min(unknown)!r} is none of the arms {', '.join(self.arms)}")
            if each.printed and self.printed_metric is None:
                raise ValueError(f"{self.name}: numbers are printed; expected printed_metric")
        if self.paper not in PAPERS.values():
            raise ValueError(f"{self.name}: paper: expected one of {', '.join(PAPERS.values())}, found {self.paper!r}")
        if len({self.measures == "quality", self.metric is not None, self.smallest is not None}) > 1:
            raise ValueError(f"{self.name}: expected metric and smallest for a claim about quality, and only there")
        if any((arm.row is None) == (self.metric is not None) for arm in self.arms.values()):
            raise ValueError(f"{self.name}: expected each arm's row for a claim about quality, else null")
        return self


class Study(Settings):
    """What is claimed, in the order in which it is tested."""

    title: str
    description: str
    claims: Annotated[list[Claim], Field(min_length=1)]

    @model_validator(mode="after")
    def _named_once(self) -> Study:
        names = [claim.name for claim in self.claims]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"claims: the name {min(twice)!r} stands twice; give each its own")
        return self

    @property
    def family(self) -> int:
        """How many contrasts are tested together."""
        return sum(len(claim.contrasts) for claim in self.claims if claim.measures == "quality")

    def chosen(self, names: Sequence[str]) -> list[Claim]:
        """The claims of these names, in the study's order; all where none is named."""
        known = [claim.name for claim in self.claims]
        for name in names:
            if name not in known:
                raise UserError(f"--only {name}: the study has no claim of this name; {suggestion(name, known)}")
        return [claim for claim in self.claims if not names or claim.name in names]


def load_study(path: Path = CLAIMS) -> Study:
    """The study that a file describes."""
    return read_settings(path, (), lambda value, file: Study)


def runs(claims: Sequence[Claim]) -> Iterator[tuple[str, int]]:
    """Every recipe and seed that the claims need, each once: all of a claim before the next claim's."""
    seen = set()
    for claim in claims:
        for seed in claim.seeds:
            for arm in claim.arms.values():
                if (arm.recipe, seed) not in seen:
                    seen.add((arm.recipe, seed))
                    yield arm.recipe, seed


def wanted(study: Study, recipe: str) -> dict[str, list[str]]:
    """The rows of a recipe that claims look at, with their metrics."""
    found: dict[str, list[str]] = {}
    for claim in study.claims:
        for arm in claim.arms.values():
            if arm.recipe == recipe and arm.row and claim.metric and claim.metric not in found.get(arm.row, []):
                found.setdefault(arm.row, []).append(claim.metric)
    return found


def check(study: Study) -> None:
    """Refuse arms that their recipes do not have, before anything is run."""
    names = {arm.recipe for claim in study.claims for arm in claim.arms.values()}
    recipes = {name: load_recipe(name) for name in sorted(names)}
    for claim in study.claims:
        for arm in claim.arms.values():
            recipe, path = recipes[arm.recipe]
            if arm.row and arm.row not in recipe.row_names():
                raise UserError(f"{claim.name}: {path} has no row {arm.row!r}; it has {', '.join(recipe.row_names())}")
            if claim.metric and claim.metric not in recipe.evaluate.metrics:
                raise UserError(f"{claim.name}: {path} does not measure {claim.metric}; add it to evaluate.metrics")
            if arm.row is None and recipe.pretrain is None:
                raise UserError(f"{claim.name}: {path} pre-trains nothing whose cost could be measured")
