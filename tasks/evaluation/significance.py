"""Paired tests of two runs' values by query, and Holm's correction for a family of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
SIGNS_AT_A_TIME = 10_000_000
ROUNDING = 1e-12  # what differences of equal size may differ by, of their size


def paired_t_test(run: Values, baseline: Values) -> float:
    """The two-sided p of Student's paired test; 1 where no query differs or there is but one query.

    Where every query differs by the same there is no variance to go by: then that of the exact sign test.
    """
    from scipy.stats import ttest_rel

    difference = run - baseline
    if len(difference) < 2 or not difference.any():
        return 1.0
    if np.ptp(difference) <= ROUNDING * abs(difference).max():
        return float(2.0 ** (1 - len(difference)))
    return float(ttest_rel(run, baseline).pvalue)


def randomisation_test(run: Values, baseline: Values, *, resamples: int, seed: int) -> float:
    """The two-sided p of Fisher's paired randomisation test: signs of the differences drawn at random.

    The observed signs count as one draw (Phipson and Smyth 2010), so p is never 0.
    """
    difference = run - baseline
    difference = difference[difference != 0]  # the sign of a zero changes nothing
    if not len(difference):
        return 1.0
    random, observed, extreme = np.random.default_rng(seed), abs(difference.sum()), 0
    step = max(1, SIGNS_AT_A_TIME // len(difference))
    for start in range(0, resamples, step):
        draws = random.integers(0, 2, size=(min(step, resamples - start), len(difference)), dtype=np.int8)
        sums = 2 * (draws @ difference) - difference.sum()
        extreme += int(np.count_nonzero(np.abs(sums) >= observed * (1 - 1e-9)))
    return (extreme + 1) / (resamples + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p of a family of tests, in the order given."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
