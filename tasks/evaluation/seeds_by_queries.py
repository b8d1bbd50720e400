"""The mean difference over seeds, folds and queries, all random samples: its standard error, interval and test.

Every seed is evaluated on every query, so the two factors are crossed, and the mean varies with both. Its variance
comes from the mean squares of a two-way table with one value per cell: (MS_seed + MS_query - MS_rest) / (S Q), the
denominator of Clark's quasi F (1973, The language-as-fixed-effect fallacy), with degrees of freedom after Satterthwaite
(1946). A negative estimate of a variance component counts as 0.

In a cross-validation every fold has its own queries and its own runs, and its runs share their train queries. So a
fold with several runs is one observation, the mean over its runs. Queries about one article are not independent. Where
articles are the sample, each counts once, by the mean over its queries.
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
    """A mean over runs and queries."""

    value: float
    error: float
    """The standard error of the mean."""
    degrees: float
    """Degrees of freedom."""
    seeds: int
    """The number of runs of a system: its seeds in all folds."""
    queries: int
    """The number of queries, or of clusters of them, in all folds."""

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
    """Return the mean of differences [seeds, queries] or [folds, seeds, queries].

    With one fold and one seed its test is the paired t-test. Every fold has `seeds` runs and `queries` of its own. A
    query may be a cluster, whose value is a mean. Raises ValueError for fewer than two queries.
    """
    table = differences if differences.ndim == 3 else differences[None]
    folds, seeds, queries = table.shape
    if queries < 2:
        raise ValueError(f"expected two queries or more, found {queries}")
    squares = mean_squares(table)
    variance, degrees = squares.queries, float(queries - 1)
    if folds > 1:
        variance, degrees = nested_variance(squares.folds, squares.queries, folds, queries)
    elif seeds > 1:
        rest_sum = squares.rest * (seeds - 1) * (queries - 1)
        variance, degrees = combined_variance(squares.seeds, squares.queries, rest_sum, seeds, queries)
    error = math.sqrt(variance / table.size)
    if error <= ROUNDING * float(np.abs(table).max(initial=0.0)):
        error = 0.0
    return Mean(float(table.mean()), error, degrees, folds * seeds, folds * queries)


@dataclass(frozen=True)
class MeanSquares:
    """The mean squares of a table [folds, seeds, queries]; 0 for a factor with one level."""

    folds: float
    seeds: float
    """Of seeds within folds."""
    queries: float
    """Of queries within folds."""
    rest: float


def mean_squares(table: Values) -> MeanSquares:
    """Return the mean squares of seeds and queries, which are nested in folds and crossed with each other."""
    folds, seeds, queries = table.shape
    by_fold, by_run, by_query = table.mean(axis=(1, 2))[:, None], table.mean(axis=2), table.mean(axis=1)
    rest = table - by_run[:, :, None] - by_query[:, None, :] + by_fold[:, :, None]

    def square(deviations: Values, repeats: int, degrees: int) -> float:
        return repeats * float(np.square(deviations).sum()) / degrees if degrees else 0.0

    return MeanSquares(
        square(by_fold - table.mean(), seeds * queries, folds - 1),
        square(by_run - by_fold, queries, folds * (seeds - 1)),
        square(by_query - by_fold, seeds, folds * (queries - 1)),
        square(rest, 1, folds * (seeds - 1) * (queries - 1)),
    )


def nested_variance(fold_square: float, query_square: float, folds: int, queries: int) -> tuple[float, float]:
    """Return the mean square that determines the variance of the mean over folds, and its degrees of freedom.

    A fold's mean varies with its train queries, its runs and its queries. If folds vary no more than their queries
    explain, folds count as equal, and all queries are one sample. This choice makes small p-values too frequent
    (docs/evaluation.md states how often).
    """
    if fold_square > query_square:
        return fold_square, folds - 1.0
    query_degrees, degrees = folds * (queries - 1), folds * queries - 1
    return ((folds - 1) * fold_square + query_degrees * query_square) / degrees, float(degrees)


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
