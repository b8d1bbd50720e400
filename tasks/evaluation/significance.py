"""Paired tests of two runs' values by query, and Holm's correction for a family of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
SIGNS_PER_BLOCK = 10_000_000
ROUNDING = 1e-12  # the relative difference up to which two numbers count as equal


def paired_t_test(run: Values, baseline: Values) -> float:
    """Return the two-sided p of Student's paired t-test; 1 where no query differs or there is only one query.

    Where all queries differ by the same amount the variance is 0, and the p is that of the exact sign test.
    """
    from scipy.stats import ttest_rel

    difference = run - baseline
    if len(difference) < 2 or not difference.any():
        return 1.0
    if np.ptp(difference) <= ROUNDING * abs(difference).max():
        return float(2.0 ** (1 - len(difference)))
    return float(ttest_rel(run, baseline).pvalue)


def clustered_t_test(run: Values, baseline: Values, clusters: Sequence[str]) -> float:
    """Return the two-sided p of a paired t-test whose queries are independent between clusters, and not within them.

    The standard error of the mean difference is the one robust to clusters of any size (Liang and Zeger 1986), with
    one degree of freedom less than there are clusters. With one query in each cluster it is `paired_t_test`; where all
    clusters have the same mean, it is the exact sign test of clusters.
    """
    from scipy.stats import t

    difference = run - baseline
    names = np.unique(np.asarray(clusters), return_inverse=True)[1]
    number = int(names.max(initial=-1)) + 1
    if number < 2 or not difference.any():
        return 1.0
    mean = float(difference.mean())
    sums = np.bincount(names, weights=difference - mean)
    error = math.sqrt(number / (number - 1) * float(np.square(sums).sum())) / len(difference)
    if error <= ROUNDING * abs(difference).max():
        return float(2.0 ** (1 - number)) if mean else 1.0
    return float(2 * t.sf(abs(mean) / error, number - 1))


def randomisation_test(run: Values, baseline: Values, *, resamples: int, seed: int) -> float:
    """Return the two-sided p of Fisher's paired randomisation test, which flips signs of the differences at random.

    The observed signs count as one sample (Phipson and Smyth 2010), so p is never 0.
    """
    difference = run - baseline
    difference = difference[difference != 0]  # the sign of a zero changes nothing
    if not len(difference):
        return 1.0
    random, observed, extreme = np.random.default_rng(seed), abs(difference.sum()), 0
    step = max(1, SIGNS_PER_BLOCK // len(difference))
    for start in range(0, resamples, step):
        flips = random.integers(0, 2, size=(min(step, resamples - start), len(difference)), dtype=np.int8)
        sums = 2 * (flips @ difference) - difference.sum()
        extreme += int(np.count_nonzero(np.abs(sums) >= observed * (1 - 1e-9)))
    return (extreme + 1) / (resamples + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Return the p values of a family of tests, adjusted after Holm (1979), in the order given."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
