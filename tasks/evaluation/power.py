"""The minimum detectable effect of a study's design, from the variances of a difference between two systems.

A design has folds, seeds that are runs in each fold, and queries (or clusters of queries) in each fold. The effect is
estimated by simulated studies: each has random mean squares and a random error of the mean, from which the test of
`tasks.evaluation.seeds_by_queries.mean_difference` decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tasks.evaluation.seeds_by_queries import POWER, Mean, MeanSquares, mean_squares, variance_of_mean
from tasks.evaluation.significance import Values

STUDIES, SEED = 20_000, 0  # simulated studies: the standard error of a power of 80 % is 0.3 %


@dataclass(frozen=True)
class Variances:
    """The variances of a difference between two systems."""

    fold: float
    """Between folds, by their train queries; with one seed it contains that between runs."""
    seed: float
    """Between seeds, such as by their pre-training, which folds share."""
    run: float
    """Between a fold's runs, beyond what their seeds vary; with one fold it is part of that between seeds."""
    query: float
    """Between the means of queries, or of clusters."""
    rest: float
    """Of one query in one run, beyond all other variances."""


@dataclass(frozen=True)
class Design:
    """The size of a study."""

    folds: int
    seeds: int
    """The number of seeds, which are the same in all folds."""
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

    With one seed the variance between runs is part of that between folds, and the rest is part of the queries'. Raises
    ValueError for one run, whose variance is unknown.
    """
    folds, seeds, queries = differences.shape
    if folds * seeds < 2:
        raise ValueError("expected two runs or more, found 1")
    squares = mean_squares(differences)
    if seeds == 1:
        return Variances(max(0.0, (squares.folds - squares.queries) / queries), 0.0, 0.0, squares.queries, 0.0)
    query = max(0.0, (squares.queries - squares.rest) / seeds)
    if folds == 1:
        return Variances(0.0, max(0.0, (squares.seeds - squares.rest) / queries), 0.0, query, squares.rest)
    seed = max(0.0, (squares.seeds - squares.runs) / (folds * queries))
    run = max(0.0, (squares.runs - squares.rest) / queries)
    fold = squares.folds - squares.queries - squares.runs + squares.rest
    return Variances(max(0.0, fold / (seeds * queries)), seed, run, query, squares.rest)


def detectable_effect(design: Design, variance: Variances, level: float) -> float:
    """Return the difference that 80 % of such studies detect with a two-sided test at this level.

    A design with one fold cannot measure the variance between folds, so that it counts as variance between seeds.
    """
    from scipy.stats import t

    if design.runs == 1:  # nothing is known of the runs; the power of a paired t-test has a formula
        error = math.sqrt((variance.query + variance.rest) / design.queries)
        return Mean(0.0, error, design.queries - 1.0, 1, design.queries).detectable(level)
    if design.folds == 1:
        variance = replace(variance, fold=0.0, run=0.0, seed=variance.seed + variance.run + variance.fold)
    random = np.random.default_rng(SEED)
    squares, degrees = np.array(list(_simulated(design, variance, random))).T
    error = math.sqrt(
        variance.fold / design.folds
        + variance.seed / design.seeds
        + variance.run / design.runs
        + variance.query / (design.folds * design.queries)
        + variance.rest / design.cells
    )
    errors = random.normal(0, error, STUDIES)
    return float(np.quantile(t.ppf(1 - level / 2, degrees) * np.sqrt(squares / design.cells) - errors, POWER))


def _simulated(design: Design, variance: Variances, random: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Yield the mean square and the degrees of freedom of each simulated study."""
    folds, seeds, queries = design.folds, design.seeds, design.queries
    of_run, of_query = queries * variance.run + variance.rest, seeds * variance.query + variance.rest
    expected = {
        "folds": (seeds * queries * variance.fold + queries * variance.run + of_query, folds - 1),
        "seeds": (folds * queries * variance.seed + of_run, seeds - 1),
        "runs": (of_run, (folds - 1) * (seeds - 1)),
        "queries": (of_query, folds * (queries - 1)),
        "rest": (variance.rest, folds * (seeds - 1) * (queries - 1)),
    }
    drawn = {
        name: (value * random.chisquare(degrees, STUDIES) / degrees if degrees else np.zeros(STUDIES)).tolist()
        for name, (value, degrees) in expected.items()
    }
    for number in range(STUDIES):
        squares = MeanSquares(**{name: values[number] for name, values in drawn.items()})
        yield variance_of_mean(squares, folds, seeds, queries)
