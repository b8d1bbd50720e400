"""Variances of differences and the minimum detectable effect: by simulation of complete tables."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tasks.evaluation.power import Design, Variances, detectable_effect, variances
from tasks.evaluation.seeds_by_queries import mean_difference

TRUE = Variances(fold=0.2**2, seed=0.25**2, run=0.3**2, query=0.5**2, rest=0.4**2)


def table(random: np.random.Generator, design: Design, effect: float = 0.0) -> np.ndarray:
    """The differences of a study."""
    folds, seeds, queries = design.folds, design.seeds, design.queries
    values: np.ndarray = (
        effect
        + random.normal(0, math.sqrt(TRUE.fold) if folds > 1 else 0.0, (folds, 1, 1))
        + random.normal(0, math.sqrt(TRUE.seed), (1, seeds, 1))
        + random.normal(0, math.sqrt(TRUE.run) if folds > 1 else 0.0, (folds, seeds, 1))
        + random.normal(0, math.sqrt(TRUE.query), (folds, 1, queries))
        + random.normal(0, math.sqrt(TRUE.rest), (folds, seeds, queries))
    )
    return values


def test_variances_are_estimated_without_bias() -> None:
    random = np.random.default_rng(0)

    crossed = [variances(table(random, Design(10, 5, 8))) for _ in range(1500)]
    nested = [variances(table(random, Design(10, 1, 8))) for _ in range(1500)]
    without = [variances(table(random, Design(1, 5, 80))) for _ in range(1500)]

    assert np.mean([estimate.fold for estimate in crossed]) == pytest.approx(TRUE.fold, rel=0.3)
    assert np.mean([estimate.seed for estimate in crossed]) == pytest.approx(TRUE.seed, rel=0.1)
    assert np.mean([estimate.seed for estimate in without]) == pytest.approx(TRUE.seed, rel=0.1)
    assert np.mean([estimate.run for estimate in crossed]) == pytest.approx(TRUE.run, rel=0.05)
    assert np.mean([estimate.query for estimate in crossed]) == pytest.approx(TRUE.query, rel=0.05)
    assert np.mean([estimate.rest for estimate in crossed]) == pytest.approx(TRUE.rest, rel=0.05)
    assert np.mean([estimate.query for estimate in nested]) == pytest.approx(TRUE.query + TRUE.rest, rel=0.05)
    assert np.mean([estimate.fold for estimate in nested]) == pytest.approx(TRUE.fold + TRUE.run, rel=0.1)
    assert {(estimate.seed, estimate.run, estimate.rest) for estimate in nested} == {(0.0, 0.0, 0.0)}
    with pytest.raises(ValueError, match="two runs or more"):
        variances(table(random, Design(1, 1, 8)))


@pytest.mark.parametrize("design", [Design(5, 5, 8), Design(5, 3, 8), Design(1, 3, 40)])
def test_four_studies_of_five_detect_the_effect(design: Design) -> None:
    random, level = np.random.default_rng(1), 0.01
    known = TRUE if design.folds > 1 else replace(TRUE, fold=0.0, run=0.0)
    effect = detectable_effect(design, known, level)

    results = [mean_difference(table(random, design, effect)) for _ in range(1500)]

    assert np.mean([result.p() < level and result.value > 0 for result in results]) == pytest.approx(0.8, abs=0.035)


def test_more_runs_detect_smaller_effects() -> None:
    effects = [detectable_effect(Design(5, seeds, 8), TRUE, 0.01) for seeds in (2, 3, 5)]

    assert effects == sorted(effects, reverse=True)
