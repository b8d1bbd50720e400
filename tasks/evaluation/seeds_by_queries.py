"""The mean difference over seeds and queries, both random samples: its standard error, interval and test.

Every seed is evaluated on every query, so the two factors are crossed, and the mean varies with both. Its variance
comes from the mean squares of a two-way table with one value per cell: (MS_seed + MS_query - MS_rest) / (S Q), the
denominator of Clark's quasi F (1973, The language-as-fixed-effect fallacy), with degrees of freedom after Satterthwaite
(1946). A negative estimate of a variance component counts as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.significance import Values

POWER = 0.8
ROUNDING = 1e-12  # a standard error below this share of the values is rounding


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and queries."""

    value: float
    error: float
    """The standard error of the mean."""
    degrees: float
    """Degrees of freedom."""
    seeds: int
    queries: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of the mean, by Student's t."""
        half = quantile((1 + level) / 2, self.degrees) * self.error
        return self.value - half, self.value + half

    def p(self) -> float:
        """Return the two-sided p of the hypothesis that the mean is 0; 1 where every difference is 0.

        Where all differences are equal the variance is 0, and the p is that of the exact sign test over queries.
        """
        from scipy.stats import t

        if not self.value:
            return 1.0
        if not self.error:
            return float(2.0 ** (1 - self.queries))
        return float(2 * t.sf(abs(self.value) / self.error, self.degrees))

    def detectable(self, level: float, power: float = POWER) -> float:
        """Return the minimum detectable effect of a two-sided test at this level, with this standard error."""
        from scipy.optimize import brentq
        from scipy.stats import nct

        critical = quantile(1 - level / 2, self.degrees)
        noncentrality = brentq(lambda shift: nct.sf(critical, self.degrees, shift) - power, 0, 4 * critical)
        return float(noncentrality) * self.error


def mean_difference(differences: Values) -> Mean:
    """Return the mean of differences [seeds, queries]; with one seed its test is the paired t-test.

    Raises ValueError for fewer than two queries.
    """
    seeds, queries = differences.shape
    if queries < 2:
        raise ValueError(f"expected two queries or more, found {queries}")
    mean, by_seed, by_query = differences.mean(), differences.mean(axis=1), differences.mean(axis=0)
    query_square = seeds * float(np.square(by_query - mean).sum()) / (queries - 1)
    variance, degrees = query_square, queries - 1.0
    if seeds > 1:
        seed_square = queries * float(np.square(by_seed - mean).sum()) / (seeds - 1)
        rest = differences - by_seed[:, None] - by_query[None, :] + mean
        variance, degrees = combined_variance(seed_square, query_square, float(np.square(rest).sum()), seeds, queries)
    error = math.sqrt(variance / (seeds * queries))
    if error <= ROUNDING * float(np.abs(differences).max(initial=0.0)):
        error = 0.0
    return Mean(float(mean), error, degrees, seeds, queries)


def combined_variance(
    seed_square: float, query_square: float, rest_sum: float, seeds: int, queries: int
) -> tuple[float, float]:
    """Return the mean square that determines the variance of the mean, and its degrees of freedom.

    Given are the mean squares of seeds and of queries, and the residual sum of squares.
    """
    rest_degrees = (seeds - 1) * (queries - 1)
    rest_square = rest_sum / rest_degrees
    factors = [(seed_square, seeds - 1), (query_square, queries - 1)]
    kept = [(square, degrees) for square, degrees in factors if square > rest_square]  # else the component is 0
    variance = sum(square for square, _ in kept) - (len(kept) - 1) * rest_square
    squares = [square**2 / degrees for square, degrees in kept]
    if len(kept) != 1:  # with one factor, the residual mean square cancels
        squares.append(rest_square**2 / rest_degrees)
    return variance, (variance**2 / sum(squares) if sum(squares) else float(queries - 1))


def quantile(share: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(share, degrees))
