"""Verdicts on the claims of a study, by fixed rules: comparisons of systems, and their minimum detectable effects.

A comparison (YAML key `contrasts`) claims that one system (`arm`) is better than another. Its values are differences by
seed and query (`tasks.evaluation.seeds_by_queries`); all comparisons of a study are one family of Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from storage.errors import UserError
from tasks.evaluation.power import Design, Variances, detectable_effect
from tasks.evaluation.seeds_by_queries import Mean, mean_difference, quantile
from tasks.evaluation.significance import Values, holm, randomisation_test
from tasks.evaluation.two_looks import Look, by_article, mean_of_both

Verdict = Literal["supported", "contradicted", "bounded", "inconclusive", "not run"]
LEVEL = 0.05
BOUND = 0.5  # of the paper's difference, within which an interval around zero is "bounded"
LOOKS = 2  # chances of a comparison to be decided in a study that gives some of them a second look
RESAMPLES, SEED = 10_000, 0  # of the randomisation test: a p of 0.05 has a standard error of 0.002

SIGMA = {"MRR": 0.38, "nDCG": 0.38, "recall": 0.5, "success": 0.5}
"""Assumed standard deviation of a query's value. Retrievers have about 0.38 for reciprocal ranks on MS MARCO's dev set,
which is used for nDCG too; 0.5 is the maximum for values in [0, 1], reached by a value that is 0 or 1 equally often."""
RHO = 0.8
"""Assumed correlation of two systems over queries: two retrievers of one size that differ in a detail."""
REST = 0.8
"""Share of a difference's variance over queries that varies with the seed, estimated from the study's first runs."""
SEED_SIGMA = 0.005
"""Assumed standard deviation of a system's mean over seeds: differences below 0.01 then need several seeds."""

RUN_SIGMA, ARTICLE_SIGMA = 0.013, 0.018
"""Standard deviations of a difference of MRR@10 between runs and between articles, in the pilot (docs/log.md). Its runs
cannot tell what of the first is the seeds' (their pre-training) and what the runs' (their fine-tuning): half each."""
ARTICLE_REST = 0.3
"""Assumed share of an article's variance that varies with the run."""


@cache
def minimum_detectable_effect(metric: str, queries: int, seeds: int, family: int) -> float:
    """Return the minimum detectable effect at 80 % power and at Holm's first level in a family of this size."""
    variance = 2 * (1 - RHO) * SIGMA[metric.partition("@")[0]] ** 2
    assumed = Variances(0.0, 2 * SEED_SIGMA**2, 0.0, (1 - REST) * variance, REST * variance)
    return detectable_effect(Design(1, seeds, queries), assumed, LEVEL / family)


@cache
def minimum_detectable_effect_in_folds(folds: int, articles: int, seeds: int, family: int) -> float:
    """Return the same for a cross-validation, with equally many articles in each fold, by the pilot's variances."""
    run, article = RUN_SIGMA**2 / 2, ARTICLE_SIGMA**2
    assumed = Variances(0.0, run, run, (1 - ARTICLE_REST) * article, ARTICLE_REST * article)
    return detectable_effect(Design(folds, seeds, articles), assumed, LEVEL / family)


FOLD_SIGMA, ARTICLE_SIGMA_MEASURED, REST_SIGMA = 0.005, 0.017, 0.017
"""Standard deviations of a difference of MRR@10 in the first block of the study (RetroMAE and a masked language model,
fine-tuned; docs/log.md): between folds, between articles, and of an article in one run beyond these. That between
seeds, 0.001, is not seen beside them."""


@cache
def minimum_detectable_effect_in_turn(folds: int, articles: int, family: int) -> float:
    """Return the same for one run in each fold, where seeds take turns, by the variances of the first block."""
    assumed = Variances(FOLD_SIGMA**2, 0.0, 0.0, ARTICLE_SIGMA_MEASURED**2 + REST_SIGMA**2, 0.0)
    return detectable_effect(Design(folds, 1, articles), assumed, LEVEL / family)


@dataclass(frozen=True)
class SystemComparison:
    """The comparison of two systems, as measured."""

    arm: str
    than: str
    missing: Sequence[str] = ()
    """Recipes and seeds that have not been run; empty where the comparison has a result."""
    runs: tuple[int, int] = (0, 0)
    """The number of runs that are kept, and of those that the comparison needs."""
    values: tuple[float, float] | None = None
    """The means of both systems."""
    by_seed: Sequence[float] = ()
    difference: Mean | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_seeds: float | None = None
    """The p of Student's t-test on the seeds' means only; None where they do not vary.

    None for two looks, too: their seeds' means are not independent, since both looks have the same articles.
    """
    p_randomisation: float | None = None
    p_holm: float | None = None
    detectable: float | None = None
    """The minimum detectable effect at 80 % power and at Holm's first level, with the measured standard error."""
    printed: float | None = None
    """The difference that the paper reports, if it reports one."""
    verdict: Verdict = "not run"
    of_looks: Sequence[Mean] = ()
    """The differences of the first look and of the second, where the comparison is of both."""
    second_runs: tuple[int, int] | None = None
    """The number of runs of a second look that are kept, and of those that it needs; None without a second look."""


def compare_systems(arm: str, than: str, look: Look, second: Look | None = None) -> SystemComparison:
    """Return the comparison of two systems in one look or in two; `with_verdicts` adds the correction for its family.

    Two looks have folds, and the same articles.
    """
    looks = [look, second] if second else [look]
    for own, baseline in ((each.own, each.baseline) for each in looks):
        if own.shape != baseline.shape:
            raise UserError(
                f"{arm} and {than}: expected the same runs and queries, found {own.shape} and {baseline.shape}"
            )
    means = [mean_difference(each.differences) for each in looks]
    difference = mean_of_both(look, second) if second else means[0]
    low, high = difference.interval()
    by_seed = [value for each in looks for value in each.by_seed]
    values = [float(np.mean([side.mean() for side in sides])) for sides in zip(*map(_sides, looks), strict=True)]
    return SystemComparison(
        arm, than, values=(values[0], values[1]), by_seed=by_seed, difference=difference, low=low, high=high,
        p=difference.p(), p_seeds=None if second else _p_of_seeds(np.array(by_seed)),
        p_randomisation=randomisation_test(*_by_query(looks), resamples=RESAMPLES, seed=SEED),
        of_looks=means if second else (),
    )  # fmt: skip


def _sides(look: Look) -> tuple[Values, Values]:
    return look.own, look.baseline


def _by_query(looks: Sequence[Look]) -> list[Values]:
    """Return the mean of each query or article over all runs, of both systems."""
    if len(looks) == 1:
        return [side.mean(-2).ravel() for side in _sides(looks[0])]
    by_look = [[by_article(side, look) for side in _sides(look)] for look in looks]
    return [np.mean(sides, axis=0) for sides in zip(*by_look, strict=True)]


def with_verdicts(comparisons: Sequence[SystemComparison]) -> list[SystemComparison]:
    """Return all comparisons of a study with their verdicts.

    Those without a result count in Holm's correction with a p of 1, so that a verdict of "supported" stays when their
    results are added. Where some comparisons have a second look, every p counts twice (Bonferroni): each of them could
    have got one, so each has two chances to be decided.
    """
    chances = LOOKS if any(comparison.second_runs for comparison in comparisons) else 1
    adjusted = holm([1.0 if pair.p is None else min(1.0, chances * pair.p) for pair in comparisons])
    return [
        comparison if comparison.p is None else _with_verdict(comparison, p_holm, chances * len(comparisons))
        for comparison, p_holm in zip(comparisons, adjusted, strict=True)
    ]


def _with_verdict(comparison: SystemComparison, p_holm: float, tests: int) -> SystemComparison:
    if (difference := comparison.difference) is None:
        raise TypeError("a comparison without a result has no verdict")
    verdict: Verdict = "inconclusive"
    if p_holm < LEVEL:
        verdict = "supported" if difference.value > 0 else "contradicted"
    elif is_bounded(comparison):
        verdict = "bounded"
    return replace(
        comparison,
        p_holm=p_holm,
        detectable=difference.detectable(LEVEL / tests),
        verdict=verdict,
    )


def is_bounded(comparison: SystemComparison) -> bool:
    """Return whether the 95 % interval is within half of the paper's difference around zero.

    The paper's effect, and any effect at least half as large, is then excluded for this experiment. An effect of half
    of the paper's is so called in 2.5 % of looks at most, and with two chances in 5 %. The interval is not corrected
    for the number of comparisons.
    """
    if comparison.printed is None or comparison.low is None or comparison.high is None:
        return False
    return max(-comparison.low, comparison.high) <= BOUND * abs(comparison.printed)


def _p_of_seeds(means: Values) -> float | None:
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(means, 0.0).pvalue) if len(means) > 1 and means.std() else None


def claim_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return a claim's verdict from those of its comparisons."""
    if "contradicted" in verdicts:
        return "contradicted"
    if "not run" in verdicts:
        return "not run"
    if "inconclusive" in verdicts:
        return "inconclusive"
    return "bounded" if "bounded" in verdicts else "supported"


@dataclass(frozen=True)
class CostComparison:
    """The costs of a training step of two systems: CPU seconds by seed, and counted FLOPs."""

    arm: str
    than: str
    missing: Sequence[str] = ()
    runs: tuple[int, int] = (0, 0)
    seconds: tuple[float, float] | None = None
    """CPU seconds of a step, the mean over the seeds."""
    flops: tuple[float, float] | None = None
    """FLOPs of a step, an upper bound."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "not run"


def compare_costs(
    arm: str, than: str, seeds: Sequence[int], seconds: tuple[Sequence[float], Sequence[float]],
    flops: tuple[float, float],
) -> CostComparison:  # fmt: skip
    """Return whether a step is cheaper, by the ratio of CPU seconds with its 95 % interval over the seeds.

    The interval is that of the mean logarithm of the ratios. A seed counts once, by its mean over folds, which may
    share its pre-training. Costs are not part of Holm's family: they are few values that hardly vary.
    """
    own, baseline = (np.asarray(values, dtype=np.float64) for values in seconds)
    of_run, of_seed = np.log(own / baseline), np.asarray(seeds)
    logs = np.array([of_run[of_seed == seed].mean() for seed in dict.fromkeys(seeds)])
    half = 0.0 if len(logs) < 2 else quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    low, ratio, high = (math.exp(float(logs.mean()) + offset) for offset in (-half, 0.0, half))
    verdict: Verdict = "inconclusive"
    if len(logs) > 1 and (high < 1 or low > 1):
        verdict = "supported" if high < 1 else "contradicted"
    means = float(own.mean()), float(baseline.mean())
    return CostComparison(arm, than, (), (0, 0), means, flops, ratio, low, high, verdict)
