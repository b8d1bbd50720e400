"""The claims of a recipe: what its report claims, judged by the run's tests, and what it does not claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from storage.settings import Settings
from tasks.report.page.statistics import direction


class Claim(Settings):
    """A claim about two systems by the headline's metric."""

    run: str
    baseline: str
    expected: Literal["better", "not worse"]
    """better: significantly better. not worse: not significantly worse, which is no proof that both are equal."""


class Claims(Settings):
    """The claims of a recipe about its results, and what it leaves open."""

    made: Annotated[list[Claim], Field(min_length=1)]
    not_made: list[str]
    """Sentences about what the recipe's results do not show."""


def judged(claims: Claims, comparisons: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the claims with the decision about each: `supported` if the run's test agrees with it."""
    tests = {(row["run"], row["baseline"]): row for row in comparisons if row["metric"] == metric}
    return {"made": [_decided(claim, tests[claim.run, claim.baseline]) for claim in claims.made],
            "not_made": claims.not_made}  # fmt: skip


def _decided(claim: Claim, test: Mapping[str, Any]) -> dict[str, Any]:
    sign = direction(test)
    supported = sign == 1 if claim.expected == "better" else sign != -1
    return {**claim.model_dump(), "supported": supported, "difference": test["difference"], "p_holm": test["p_holm"]}
