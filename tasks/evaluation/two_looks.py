"""The mean difference of two looks at the same articles: cross-validations with other folds, seeds and runs.

Both looks count alike. Their means share the articles, so the variance of the mean of both is
(V_1 + V_2) / 4 + C / 2, with each look's variance V and the covariance C of both means. C is the covariance of an
article's two differences, divided by the number of articles; folds, seeds and runs of one look are not those of the
other. Degrees of freedom are after Satterthwaite (1946), of these three parts; they are approximate, since the parts
are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.seeds_by_queries import Mean, mean_difference
from tasks.evaluation.significance import Values


@dataclass(frozen=True)
class Look:
    """The values of two systems in the runs of one look."""

    own: Values
    """Values by seed and query, or with folds by fold, seed and article."""
    baseline: Values
    """Those of the other system, in the same runs."""
    articles: Sequence[str] = ()
    """The names of the articles, fold by fold; empty without folds."""
    in_turn: Sequence[int] | None = None
    """The seed of each fold, where each has one run."""

    @property
    def differences(self) -> Values:
        """The differences, with the dimensions of the values."""
        return self.own - self.baseline

    @property
    def by_seed(self) -> list[float]:
        """The mean difference of each seed over its queries, in all folds that it has a run in."""
        means = self.differences.mean(axis=-1)
        if self.in_turn is not None:
            seeds = np.asarray(self.in_turn)
            return [float(means[seeds == seed].mean()) for seed in dict.fromkeys(self.in_turn)]
        return [float(mean) for mean in (means if means.ndim == 1 else means.mean(axis=0))]


def mean_of_both(first: Look, second: Look) -> Mean:
    """Return the mean difference of two looks with folds. Raises ValueError where their articles are not the same."""
    if sorted(first.articles) != sorted(second.articles) or len(set(first.articles)) < len(first.articles):
        raise ValueError("expected the same articles in both looks, each in one fold")
    one, other = mean_difference(first.differences), mean_difference(second.differences)
    pairs = np.stack([by_article(look.differences, look) for look in (first, second)])
    articles = len(first.articles)
    parts = (
        (one.error**2 / 4, one.degrees),
        (other.error**2 / 4, other.degrees),
        (max(0.0, float(np.cov(pairs)[0, 1])) / articles / 2, articles - 1.0),
    )
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / degrees for part, degrees in parts)
    degrees = min(variance**2 / spread if spread else math.inf, articles - 1.0)
    return Mean((one.value + other.value) / 2, math.sqrt(variance), degrees, one.seeds + other.seeds, articles)


def by_article(values: Values, look: Look) -> Values:
    """Return the mean of each article over the runs of a look, in the order of the articles' names."""
    means: Values = values.mean(axis=1).ravel()
    return means[np.argsort(np.asarray(look.articles))]
