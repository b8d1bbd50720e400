"""Means over seeds and queries: by hand, beside Student's test, and by simulation."""

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from tasks.evaluation.seeds_by_queries import Mean, mean_difference, quantile


def test_two_seeds_of_three_queries() -> None:
    """Mean squares of a two-way table, by their definitions; the mean is .5."""
    table = np.array([[0.9, 0.1, 0.8], [0.7, 0.3, 0.2]])
    seeds, queries = [0.6, 0.4], [0.8, 0.2, 0.5]
    of_seeds = 3 * sum((seed - 0.5) ** 2 for seed in seeds) / 1
    of_queries = 2 * sum((query - 0.5) ** 2 for query in queries) / 2
    rest = sum((table[s, q] - seeds[s] - queries[q] + 0.5) ** 2 for s in range(2) for q in range(3)) / 2
    assert of_queries > rest > of_seeds  # so the seeds' component is below 0 and counts as 0

    result = mean_difference(table)

    assert result.value == pytest.approx(0.5)
    assert result.error == pytest.approx(math.sqrt(of_queries / 6))
    assert result.degrees == pytest.approx(2)


def test_both_variance_components_contribute() -> None:
    random = np.random.default_rng(0)
    table = random.normal(0, 0.2, (1, 50)) + random.normal(0, 0.3, (4, 1)) + random.normal(0, 0.1, (4, 50))
    mean = table.mean()
    of_seeds = 50 * table.mean(axis=1).var(ddof=1)
    of_queries = 4 * table.mean(axis=0).var(ddof=1)
    rest = (
        sum((table[s, q] - table[s].mean() - table[:, q].mean() + mean) ** 2 for s in range(4) for q in range(50)) / 147
    )
    square = of_seeds + of_queries - rest

    result = mean_difference(table)

    assert result.error == pytest.approx(math.sqrt(square / 200))
    assert result.degrees == pytest.approx(square**2 / (of_seeds**2 / 3 + of_queries**2 / 49 + rest**2 / 147))
    assert result.p() == pytest.approx(2 * t.sf(abs(mean) / result.error, result.degrees))
    low, high = result.interval()
    assert (low + high) / 2 == pytest.approx(mean)
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, result.degrees) * result.error)


def test_one_seed_gives_the_paired_t_test() -> None:
    values = np.random.default_rng(1).normal(0.05, 0.3, 40)

    result = mean_difference(values[None, :])

    theirs = ttest_1samp(values, 0.0)
    assert result.p() == pytest.approx(theirs.pvalue)
    assert result.interval() == pytest.approx(tuple(theirs.confidence_interval(0.95)))


def test_the_interval_covers_the_mean_in_95_percent() -> None:
    """Of samples whose queries and rest vary as those of retrievers do, and whose seeds vary not at all to much."""
    random = np.random.default_rng(2)
    for of_seeds in (0.0, 0.01, 0.03):
        inside = 0
        for _ in range(1500):
            table = (
                random.normal(0, 0.2, (1, 200)) + random.normal(0, of_seeds, (3, 1)) + random.normal(0, 0.2, (3, 200))
            )
            low, high = mean_difference(table).interval()
            inside += low <= 0 <= high
        assert 0.925 < inside / 1500 < 0.975, of_seeds


def test_the_minimum_detectable_effect_has_80_percent_power() -> None:
    random = np.random.default_rng(3)
    shown = mean_difference(random.normal(0, 0.3, (1, 400))).detectable(0.01)

    results = [mean_difference(random.normal(shown, 0.3, (1, 400))).p() < 0.01 for _ in range(1000)]

    assert 0.76 < np.mean(results) < 0.84


@pytest.mark.parametrize("degrees", [2.0, 2.4, 17.0])
def test_the_minimum_detectable_effect_with_few_degrees_of_freedom(degrees: float) -> None:
    """A t that is drawn: a shifted normal over the root of a chi square."""
    random, level = np.random.default_rng(4), 0.005
    shown = Mean(0.0, 2.0, degrees, 3, 100).detectable(level)

    drawn = (random.normal(shown / 2.0, 1, 40_000)) / np.sqrt(random.chisquare(degrees, 40_000) / degrees)
    assert np.mean(drawn > quantile(1 - level / 2, degrees)) == pytest.approx(0.8, abs=0.01)


def test_equal_differences_use_the_sign_test() -> None:
    assert mean_difference(np.zeros((3, 5))).p() == 1.0
    equal = mean_difference(np.full((3, 5), 0.1))
    assert equal.p() == 2.0**-4
    assert equal.interval() == pytest.approx((0.1, 0.1))
    with pytest.raises(ValueError, match="two queries or more, found 1"):
        mean_difference(np.ones((3, 1)))


Squares = dict[str, tuple[float, int]]
"""Mean squares with their degrees of freedom, by factor."""


def slow_mean_squares(table: np.ndarray) -> Squares:
    """The analysis of variance of folds and seeds, which are crossed, with queries in folds, by its definitions."""
    folds, seeds, queries = table.shape
    sums = dict.fromkeys(("folds", "seeds", "runs", "queries", "rest"), 0.0)
    mean = table.mean()
    for f in range(folds):
        for s in range(seeds):
            of_seed, of_run = table[:, s].mean(), table[f, s].mean()
            for q in range(queries):
                of_query = table[f, :, q].mean()
                sums["folds"] += (table[f].mean() - mean) ** 2
                sums["seeds"] += (of_seed - mean) ** 2
                sums["runs"] += (of_run - table[f].mean() - of_seed + mean) ** 2
                sums["queries"] += (of_query - table[f].mean()) ** 2
                sums["rest"] += (table[f, s, q] - of_run - of_query + table[f].mean()) ** 2
    degrees = {
        "folds": folds - 1, "seeds": seeds - 1, "runs": (folds - 1) * (seeds - 1), "queries": folds * (queries - 1),
        "rest": folds * (seeds - 1) * (queries - 1),
    }  # fmt: skip
    return {name: (sums[name] / max(1, degrees[name]), degrees[name]) for name in sums}


def cross_validation(
    seeds: int, of_runs: float, seed: int = 5, of_folds: float = 0.0, of_seeds: float = 0.0
) -> np.ndarray:
    """Five folds of eight articles."""
    random = np.random.default_rng(seed)
    table: np.ndarray = (
        random.normal(0, of_folds, (5, 1, 1)) + random.normal(0, of_seeds, (1, seeds, 1))
        + random.normal(0, of_runs, (5, seeds, 1)) + random.normal(0, 1, (5, 1, 8))
        + random.normal(0, 0.5, (5, seeds, 8))
    )  # fmt: skip
    return table


def expected_mean(table: np.ndarray) -> Mean:
    """Clark's mean square of folds or of articles with that of seeds, from slow mean squares."""
    squares = slow_mean_squares(table)
    sample, interaction = squares["folds"], squares["runs"]
    if sample[0] <= squares["queries"][0]:  # all articles are one sample
        both, interaction = (squares["folds"], squares["queries"]), squares["rest"]
        degrees = sum(number for _, number in both)
        sample = sum(value * number for value, number in both) / degrees, degrees
    square, degrees = sample[0], float(sample[1])
    if squares["seeds"][0] > interaction[0]:
        square += squares["seeds"][0] - interaction[0]
        parts = (sample, squares["seeds"], interaction)
        degrees = square**2 / sum(value**2 / number for value, number in parts)
    return Mean(float(table.mean()), math.sqrt(square / table.size), degrees, 5 * table.shape[1], 40)


def test_a_cross_validation_is_tested_by_folds_or_articles_and_by_seeds() -> None:
    kinds = set()
    for seed, of_folds, of_seeds in ((5, 2.0, 0.0), (9, 0.0, 0.0), (2, 0.0, 1.0), (6, 1.0, 1.0)):
        table = cross_validation(3, 0.2, seed, of_folds, of_seeds)
        result, expected, squares = mean_difference(table), expected_mean(table), slow_mean_squares(table)
        by_fold = squares["folds"][0] > squares["queries"][0]
        kinds.add((by_fold, squares["seeds"][0] > squares["runs" if by_fold else "rest"][0]))

        assert (result.seeds, result.queries) == (15, 40)
        assert result.value == pytest.approx(expected.value)
        assert (result.error, result.degrees) == (pytest.approx(expected.error), pytest.approx(expected.degrees))
    assert {kind[0] for kind in kinds} == {kind[1] for kind in kinds} == {False, True}


def test_one_seed_in_each_fold_is_tested_by_the_folds_or_by_all_articles() -> None:
    varying, equal = cross_validation(1, 2.0), cross_validation(1, 0.0, seed=5)

    assert mean_difference(varying).p() == pytest.approx(ttest_1samp(varying.mean(axis=(1, 2)), 0.0).pvalue)
    assert mean_difference(equal).p() == pytest.approx(ttest_1samp(equal.ravel(), 0.0).pvalue)


@pytest.mark.parametrize(
    ("seeds", "of_folds", "of_seeds", "of_runs"),
    [(5, 0.0, 0.0, 0.0), (5, 0.0, 0.5, 0.5), (5, 0.5, 0.2, 0.4), (5, 0.0, 0.2, 1.5), (3, 0.0, 0.2, 0.4),
     (3, 0.5, 0.5, 0.0)],
)  # fmt: skip
def test_the_interval_of_a_cross_validation_covers_the_mean_in_95_percent(
    seeds: int, of_folds: float, of_seeds: float, of_runs: float
) -> None:
    """Also where folds, seeds or runs vary."""
    tables = (cross_validation(seeds, of_runs, seed, of_folds, of_seeds) for seed in range(800))
    results = [mean_difference(table) for table in tables]
    inside = np.mean([low <= 0 <= high for low, high in (result.interval() for result in results)])
    assert 0.92 < inside < 0.99
    assert np.mean([result.p() < 0.0025 for result in results]) < 0.015


def test_seeds_that_vary_alike_in_all_folds_are_not_taken_for_many_runs() -> None:
    """A mean over the seeds of each fold, which are then compared, would ignore what folds share."""
    results, alone = [], []
    for seed in range(300):
        table = cross_validation(5, 0.2, seed, of_seeds=1.0)
        results.append(mean_difference(table))
        alone.append(mean_difference(table.mean(axis=1, keepdims=True)))

    assert np.mean([abs(result.value) < result.interval()[1] - result.value for result in results]) > 0.92
    assert np.mean([abs(result.value) < result.interval()[1] - result.value for result in alone]) < 0.8


@pytest.mark.parametrize(("of_folds", "of_seeds", "of_articles"), [(0.0048, 0.0009, 0.017), (0.0046, 0.0068, 0.0468)])
def test_seeds_that_take_turns_over_ten_folds_may_vary_as_in_the_studys_first_runs(
    of_folds: float, of_seeds: float, of_articles: float
) -> None:
    """Two folds share a seed. The variances are those after and before fine-tuning (docs/log.md)."""
    random, results = np.random.default_rng(0), []
    for _ in range(800):
        runs = random.normal(0, of_folds, 10) + np.tile(random.normal(0, of_seeds, 5), 2)
        values = runs[:, None] + random.normal(0, np.hypot(of_articles, 0.017), (10, 4))
        results.append(mean_difference(values[:, None]))

    assert 0.93 < np.mean([low <= 0 <= high for low, high in (result.interval() for result in results)]) < 0.99
    assert np.mean([result.p() < 0.0025 for result in results]) < 0.01


def test_one_fold_is_a_table_of_seeds_and_queries() -> None:
    table = cross_validation(3, 0.5)[0]

    assert mean_difference(table[None]) == mean_difference(table)
