"""Verdicts on claims, by rule alone: what a family of contrasts has measured, and what it could have shown.

A contrast says that one arm is better than another. Its values are differences by seed and query
(`tasks.evaluation.seeds_by_queries`); all contrasts of a study are one family of Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from storage.errors import UserError
from tasks.evaluation.seeds_by_queries import POWER, Mean, combined, crossed, quantile
from tasks.evaluation.significance import Values, holm, randomisation_test

Verdict = Literal["holds", "contradicts", "does not show", "not reached"]
LEVEL = 0.05
RESAMPLES, SEED = 10_000, 0  # of the randomisation test: a p of 0.05 has a standard error of 0.002

SIGMA = {"MRR": 0.38, "nDCG": 0.38, "recall": 0.5, "success": 0.5}
"""Of a query's value. A reciprocal rank's is what retrievers have on MS MARCO's dev set, about 0.38, taken for nDCG
too; 0.5 is the most that a value from 0 to 1 can have, and what one has that is 0 or 1 half of the time."""
RHO = 0.8
"""How far two arms agree query by query. Assumed: two retrievers of one size that differ in a detail."""
REST = 0.8
"""Which share of a difference's variance over queries is another one with each seed: as of the study's first runs."""
SEED_SIGMA = 0.005
"""Of an arm's mean from seed to seed. Assumed: then differences below a point need several seeds."""
STUDIES = 20_000  # that are drawn: 80 % of them are known to a third of a percent


@cache
def smallest(metric: str, queries: int, seeds: int, family: int) -> float:
    """The smallest difference that 80 % of studies of this size show, at Holm's first level of so many contrasts.

    Of several seeds by studies that are drawn: of each its mean squares and how far its mean is off, for which
    `crossed` decides.
    """
    from scipy.stats import t

    random, level = np.random.default_rng(SEED), LEVEL / family
    of_query = 2 * (1 - RHO) * SIGMA[metric.partition("@")[0]] ** 2
    if seeds == 1:  # nothing that is trained: a paired t-test's power is known
        return Mean(0.0, math.sqrt(of_query / queries), queries - 1.0, 1, queries).shown(level)

    def squares(variance: float, degrees: int) -> Values:
        return variance * random.chisquare(degrees, STUDIES) / degrees

    rest, free = REST * of_query, (seeds - 1) * (queries - 1)
    shared, of_seed = of_query - rest, 2 * SEED_SIGMA**2
    of_seeds, of_queries = squares(queries * of_seed + rest, seeds - 1), squares(seeds * shared + rest, queries - 1)
    drawn = zip(of_seeds.tolist(), of_queries.tolist(), (squares(rest, free) * free).tolist(), strict=True)
    variance, degrees = np.array([combined(*each, seeds, queries) for each in drawn]).T
    off = random.normal(0, math.sqrt(shared / queries + of_seed / seeds + rest / (seeds * queries)), STUDIES)
    needed = t.ppf(1 - level / 2, degrees) * np.sqrt(variance / (seeds * queries)) - off
    return float(np.quantile(needed, POWER))


@dataclass(frozen=True)
class Contrast:
    """One arm beside another, as measured."""

    arm: str
    than: str
    missing: Sequence[str] = ()
    """Recipes and seeds that have not been run; empty where the contrast has a result."""
    values: tuple[float, float] | None = None
    """Both arms' means."""
    by_seed: Sequence[float] = ()
    difference: Mean | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_seeds: float | None = None
    """Of the seeds' means alone, by Student's t; None where they do not vary."""
    p_randomisation: float | None = None
    p_holm: float | None = None
    shown: float | None = None
    """What could have been shown with 80 % power at Holm's first level, by the measured standard error."""
    verdict: Verdict = "not reached"


def contrasted(arm: str, than: str, mine: Sequence[Values], theirs: Sequence[Values]) -> Contrast:
    """What two arms measured, by seed and query; its place in the family is still open."""
    ours, other = np.stack(mine), np.stack(theirs)
    if ours.shape != other.shape:
        raise UserError(f"{arm} and {than}: expected the same seeds and queries, found {ours.shape} and {other.shape}")
    found = crossed(ours - other)
    low, high = found.interval()
    return Contrast(
        arm, than, values=(float(ours.mean()), float(other.mean())),
        by_seed=[float(each) for each in (ours - other).mean(axis=1)], difference=found, low=low, high=high,
        p=found.p(), p_seeds=_of_seeds((ours - other).mean(axis=1)),
        p_randomisation=randomisation_test(ours.mean(0), other.mean(0), resamples=RESAMPLES, seed=SEED),
    )  # fmt: skip


def judged(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """All contrasts of a study with their verdicts; those without a result count in Holm's correction with a p of 1.

    So what holds stays when others are added.
    """
    adjusted = holm([1.0 if each.p is None else each.p for each in contrasts])
    return [
        each if each.p is None else _judged(each, p_holm, len(contrasts))
        for each, p_holm in zip(contrasts, adjusted, strict=True)
    ]


def _judged(contrast: Contrast, p_holm: float, family: int) -> Contrast:
    if (found := contrast.difference) is None:
        raise TypeError("a contrast without a result has no verdict")
    verdict: Verdict = "does not show"
    if p_holm < LEVEL:
        verdict = "holds" if found.value > 0 else "contradicts"
    return replace(contrast, p_holm=p_holm, shown=found.shown(LEVEL / family), verdict=verdict)


def _of_seeds(means: Values) -> float | None:
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(means, 0.0).pvalue) if len(means) > 1 and means.std() else None


def of_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim's verdict, of its contrasts'."""
    if "contradicts" in verdicts:
        return "contradicts"
    if "not reached" in verdicts:
        return "not reached"
    return "holds" if set(verdicts) == {"holds"} else "does not show"


@dataclass(frozen=True)
class Cheaper:
    """What a step of one arm costs beside one of another: CPU seconds by seed, and FLOPs that were counted."""

    arm: str
    than: str
    missing: Sequence[str] = ()
    seconds: tuple[float, float] | None = None
    """Of a step, the mean over the seeds."""
    flops: tuple[float, float] | None = None
    """Of a step, at most."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "not reached"


def cheaper(
    arm: str, than: str, seconds: tuple[Sequence[float], Sequence[float]], flops: tuple[float, float]
) -> Cheaper:
    """Whether a step takes less, by the ratio of CPU seconds with its 95 % interval over the seeds.

    The seeds' ratios are taken by their logarithms, and machines may differ between seeds but not within one. It is no
    part of the family: it is measured of few values, which hardly vary.
    """
    mine, theirs = (np.asarray(each, dtype=np.float64) for each in seconds)
    logs = np.log(mine / theirs)
    half = 0.0 if len(logs) < 2 else quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    low, ratio, high = (math.exp(float(logs.mean()) + each) for each in (-half, 0.0, half))
    verdict: Verdict = "does not show"
    if len(logs) > 1 and (high < 1 or low > 1):
        verdict = "holds" if high < 1 else "contradicts"
    means = float(mine.mean()), float(theirs.mean())
    return Cheaper(arm, than, (), means, flops, ratio, low, high, verdict)
