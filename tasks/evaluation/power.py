"""The minimum detectable effect of a study's design, from the variances of a difference between two systems.

A design has folds, seeds in each fold, and queries (or clusters of queries) in each fold. The effect is estimated by
simulated studies: each has random mean squares and a random error of the mean, from which the test of
`tasks.evaluation.seeds_by_queries.mean_difference` decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tasks.evaluation.seeds_by_queries import POWER, Mean, combined_variance, mean_squares, nested_variance
from tasks.evaluation.significance import Values

STUDIES, SEED = 20_000, 0  # simulated studies: the standard error of a power of 80 % is 0.3 %


@dataclass(frozen=True)
class Variances:
    """The variances of a difference between two systems."""

    fold: float
    """Between folds, by their train queries; with one run in each fold it contains that between runs."""
    run: float
    """Between the means of a fold's runs, by their seeds."""
    query: float
    """Between the means of queries, or of clusters."""
    rest: float
    """Of one query in one run."""


@dataclass(frozen=True)
class Design:
    """The size of a study."""

    folds: int
    seeds: int
    """The number of seeds in each fold."""
    queries: int
    """The number of queries, or of clusters of them, in each fold."""

    @property
    def runs(self) -> int:
        """The number of runs of a system."""
        return self.folds * self.seeds

    @property
    def cells(self) -> int:
        """The number of values of a system."""
        return self.runs * self.queries


def variances(differences: Values) -> Variances:
    """Estimate the variances of differences [folds, seeds, queries] by their mean squares; negative ones count as 0.

    With one seed in each fold the variance between runs is part of that between folds, and the rest is part of the
    queries'. Raises ValueError for one run, whose variance is unknown.
    """
    folds, seeds, queries = differences.shape
    if folds * seeds < 2:
        raise ValueError("expected two runs or more, found 1")
    squares = mean_squares(differences)
    if seeds == 1:
        return Variances(max(0.0, (squares.folds - squares.queries) / queries), 0.0, squares.queries, 0.0)
    query = max(0.0, (squares.queries - squares.rest) / seeds)
    run = max(0.0, (squares.seeds - squares.rest) / queries)
    between = squares.folds - squares.seeds - squares.queries + squares.rest
    return Variances(max(0.0, between / (seeds * queries)) if folds > 1 else 0.0, run, query, squares.rest)


def detectable_effect(design: Design, variance: Variances, level: float) -> float:
    """Return the difference that 80 % of such studies detect with a two-sided test at this level.

    A design with one fold cannot measure the variance between folds, so that it counts as variance between runs.
    """
    from scipy.stats import t

    if design.runs == 1:  # nothing is known of the runs; the power of a paired t-test has a formula
        error = math.sqrt((variance.query + variance.rest) / design.queries)
        return Mean(0.0, error, design.queries - 1.0, 1, design.queries).detectable(level)
    if design.folds == 1:
        variance = replace(variance, fold=0.0, run=variance.run + variance.fold)
    random = np.random.default_rng(SEED)
    squares, degrees = np.array(list(_simulated(design, variance, random))).T
    error = math.sqrt(
        variance.fold / design.folds
        + variance.run / design.runs
        + variance.query / (design.folds * design.queries)
        + variance.rest / design.cells
    )
    errors = random.normal(0, error, STUDIES)
    return float(np.quantile(t.ppf(1 - level / 2, degrees) * np.sqrt(squares / design.cells) - errors, POWER))


def _simulated(design: Design, variance: Variances, random: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Yield the mean square and the degrees of freedom of each simulated study."""
    folds, seeds, queries = design.folds, design.seeds, design.queries

    def squares(expected: float, degrees: int) -> Values:
        return expected * random.chisquare(degrees, STUDIES) / degrees

    by_run, by_query = queries * variance.run + variance.rest, seeds * variance.query + variance.rest
    if folds > 1:
        by_fold = seeds * queries * variance.fold + queries * variance.run + by_query
        of_folds, of_queries = squares(by_fold, folds - 1), squares(by_query, folds * (queries - 1))
        for fold_square, query_square in zip(of_folds.tolist(), of_queries.tolist(), strict=True):
            yield nested_variance(fold_square, query_square, folds, queries)
        return
    of_seeds, of_queries = squares(by_run, seeds - 1), squares(by_query, queries - 1)
    rest_degrees = (seeds - 1) * (queries - 1)
    of_rest = squares(variance.rest, rest_degrees) * rest_degrees
    for study in zip(of_seeds.tolist(), of_queries.tolist(), of_rest.tolist(), strict=True):
        yield combined_variance(*study, seeds, queries)
