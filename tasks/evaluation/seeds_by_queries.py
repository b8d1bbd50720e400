"""The mean difference over seeds, folds and queries, all random samples: its standard error, interval and test.

Every seed is evaluated on every query, so the two factors are crossed, and the mean varies with both. Its variance
comes from the mean squares of a two-way table with one value per cell: (MS_seed + MS_query - MS_rest) / (S Q), the
denominator of Clark's quasi F (1973, The language-as-fixed-effect fallacy), with degrees of freedom after Satterthwaite
(1946). A negative estimate of a variance component counts as 0.

In a cross-validation every fold has its own queries, and every seed is a run in each fold: folds share a seed's
pre-training, so that seeds are crossed with folds. The runs of a fold share its train queries, so that folds are a
third factor. Queries about one article are not independent. Where articles are the sample, each counts once, by the
mean over its queries.

Where every fold has one run, its seed is a part of what varies between folds. Seeds that take turns are then shared by
some folds, which the test does not see: they must vary little.
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
    """Return the mean of differences [seeds, queries], or [folds, seeds, queries] with the same seeds in all folds.

    With one fold and one seed its test is the paired t-test. A fold's queries are its own. A query may be a cluster,
    whose value is a mean. With one run in each fold, and the same seed in all of them, the mean is that of this seed.
    Raises ValueError for fewer than two queries.
    """
    table = differences if differences.ndim == 3 else differences[None]
    folds, seeds, queries = table.shape
    if queries < 2:
        raise ValueError(f"expected two queries or more, found {queries}")
    variance, degrees = variance_of_mean(mean_squares(table), folds, seeds, queries)
    error = math.sqrt(variance / table.size)
    if error <= ROUNDING * float(np.abs(table).max(initial=0.0)):
        error = 0.0
    return Mean(float(table.mean()), error, degrees, folds * seeds, folds * queries)


@dataclass(frozen=True)
class MeanSquares:
    """The mean squares of a table [folds, seeds, queries]; 0 for a factor with one level."""

    folds: float
    seeds: float
    runs: float
    """The mean square of the interaction of seeds and folds."""
    queries: float
    """The mean square of queries within folds."""
    rest: float


def mean_squares(table: Values) -> MeanSquares:
    """Return the mean squares of a table: folds and seeds are crossed, and queries are nested in folds."""
    folds, seeds, queries = table.shape
    mean, by_fold, by_seed = table.mean(), table.mean(axis=(1, 2))[:, None], table.mean(axis=(0, 2))
    by_run, by_query = table.mean(axis=2), table.mean(axis=1)
    rest = table - by_run[:, :, None] - by_query[:, None, :] + by_fold[:, :, None]

    def square(deviations: Values, repeats: int, degrees: int) -> float:
        return repeats * float(np.square(deviations).sum()) / degrees if degrees else 0.0

    return MeanSquares(
        square(by_fold - mean, seeds * queries, folds - 1),
        square(by_seed - mean, folds * queries, seeds - 1),
        square(by_run - by_fold - by_seed + mean, queries, (folds - 1) * (seeds - 1)),
        square(by_query - by_fold, seeds, folds * (queries - 1)),
        square(rest, 1, folds * (seeds - 1) * (queries - 1)),
    )


def variance_of_mean(squares: MeanSquares, folds: int, seeds: int, queries: int) -> tuple[float, float]:
    """Return the mean square that determines the variance of the mean, and its degrees of freedom.

    A fold's mean varies with its train queries, its runs and its queries. If folds vary no more than their queries
    explain, folds count as equal, and all queries are one sample. The seeds' part is what they vary more than the
    interaction with this sample does.
    """
    by_query = Square(squares.queries, folds * (queries - 1))
    rest = Square(squares.rest, folds * (seeds - 1) * (queries - 1))
    if folds > 1 and squares.folds > squares.queries:
        sample, interaction = Square(squares.folds, folds - 1), Square(squares.runs, (folds - 1) * (seeds - 1))
    elif folds > 1:
        sample, interaction = by_query.pooled(Square(squares.folds, folds - 1)), rest
    else:
        sample, interaction = by_query, rest
    return combined_variance(Square(squares.seeds, seeds - 1), sample, interaction)


@dataclass(frozen=True)
class Square:
    """A mean square with its degrees of freedom."""

    value: float
    degrees: int

    def pooled(self, other: Square) -> Square:
        """Return the mean square of both together."""
        degrees = self.degrees + other.degrees
        return Square((self.value * self.degrees + other.value * other.degrees) / degrees, degrees)


def combined_variance(seeds: Square, sample: Square, interaction: Square) -> tuple[float, float]:
    """Return the mean square of a mean over seeds and a sample that are crossed, and its degrees of freedom.

    It is Clark's MS_seed + MS_sample - MS_interaction; a factor that varies less than the interaction is left out.
    """
    kept = [factor for factor in (seeds, sample) if factor.value > interaction.value and factor.degrees]
    if seeds.degrees == 0:
        return sample.value, float(sample.degrees)
    variance = sum(factor.value for factor in kept) - (len(kept) - 1) * interaction.value
    parts = [factor.value**2 / factor.degrees for factor in kept]
    if len(kept) != 1:  # with one factor, the interaction's mean square cancels
        parts.append(interaction.value**2 / interaction.degrees)
    return variance, (variance**2 / sum(parts) if sum(parts) else float(sample.degrees))


def quantile(share: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(share, degrees))
