"""The mean of differences over seeds and queries, both of which are samples: its standard error, interval and test.

Every seed is asked every query, so the two are crossed, and a mean over them varies with both. Its variance comes from
the mean squares of a two-way table with one value a cell: (MS_seed + MS_query - MS_rest) / (S Q), the denominator of
Clark's quasi F (1973, The language-as-fixed-effect fallacy), with degrees of freedom after Satterthwaite (1946). A
component that comes out below 0 counts as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.significance import Values

POWER = 0.8
ROUNDING = 1e-12  # of the values' size: less is no variance


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and queries."""

    value: float
    error: float
    """Its standard error."""
    degrees: float
    """Of freedom."""
    seeds: int
    queries: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the mean over all seeds and queries is, by Student's t."""
        half = quantile((1 + level) / 2, self.degrees) * self.error
        return self.value - half, self.value + half

    def p(self) -> float:
        """Two-sided, of a mean of 0; 1 where every difference is 0.

        Where all differ by the same there is no variance to go by: then that of the exact sign test over queries.
        """
        from scipy.stats import t

        if not self.value:
            return 1.0
        if not self.error:
            return float(2.0 ** (1 - self.queries))
        return float(2 * t.sf(abs(self.value) / self.error, self.degrees))

    def shown(self, level: float, power: float = POWER) -> float:
        """The smallest difference that a two-sided test at a level finds so often, of this standard error."""
        from scipy.optimize import brentq
        from scipy.stats import nct

        bar = quantile(1 - level / 2, self.degrees)
        return float(brentq(lambda shift: nct.sf(bar, self.degrees, shift) - power, 0, 4 * bar)) * self.error


def crossed(differences: Values) -> Mean:
    """The mean of [seeds, queries]; of one seed that of a paired t-test. ValueError for fewer than two queries."""
    seeds, queries = differences.shape
    if queries < 2:
        raise ValueError(f"expected two queries or more, found {queries}")
    mean, by_seed, by_query = differences.mean(), differences.mean(axis=1), differences.mean(axis=0)
    of_queries = seeds * float(np.square(by_query - mean).sum()) / (queries - 1)
    variance, degrees = of_queries, queries - 1.0
    if seeds > 1:
        of_seeds = queries * float(np.square(by_seed - mean).sum()) / (seeds - 1)
        rest = differences - by_seed[:, None] - by_query[None, :] + mean
        variance, degrees = combined(of_seeds, of_queries, float(np.square(rest).sum()), seeds, queries)
    error = math.sqrt(variance / (seeds * queries))
    if error <= ROUNDING * float(np.abs(differences).max(initial=0.0)):
        error = 0.0
    return Mean(float(mean), error, degrees, seeds, queries)


def combined(of_seeds: float, of_queries: float, rest: float, seeds: int, queries: int) -> tuple[float, float]:
    """The mean square by which a mean varies, of those of seeds and queries and the sum of squares of the rest."""
    free = (seeds - 1) * (queries - 1)
    within = rest / free
    kept = [(square, degrees) for square, degrees in ((of_seeds, seeds - 1), (of_queries, queries - 1))
            if square > within]  # fmt: skip
    variance = sum(square for square, _ in kept) - (len(kept) - 1) * within
    squares = [square**2 / degrees for square, degrees in kept]
    if len(kept) != 1:  # the rest takes part
        squares.append(within**2 / free)
    return variance, (variance**2 / sum(squares) if sum(squares) else float(queries - 1))


def quantile(share: float, degrees: float) -> float:
    """Of Student's t."""
    from scipy.stats import t

    return float(t.ppf(share, degrees))
