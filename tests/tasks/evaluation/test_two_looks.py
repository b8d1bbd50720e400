"""The mean of two cross-validations of the same articles: by the formula, and by simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tasks.evaluation.claim_verdicts import compare_systems, with_verdicts
from tasks.evaluation.seeds_by_queries import mean_difference
from tasks.evaluation.two_looks import Look, mean_of_both

NUM_ARTICLES = 40


def look(
    random: np.random.Generator, articles: np.ndarray, order: np.ndarray, folds: int, seeds: int, of_folds: float,
    of_runs: float, rest: float,
) -> Look:  # fmt: skip
    """A look that has the articles in this order; with one seed in a fold, five take turns."""
    shape = folds, seeds, NUM_ARTICLES // folds
    values = (
        articles[order].reshape(folds, 1, -1) + random.normal(0, of_folds, (folds, 1, 1))
        + random.normal(0, of_runs, (folds, seeds, 1)) + random.normal(0, rest, shape)
    )  # fmt: skip
    baseline = random.uniform(0, 1, shape)
    names = [f"article-{number:02}" for number in order]
    return Look(baseline + values, baseline, names, [fold % 5 for fold in range(folds)] if seeds == 1 else None)


FIVE, TEN, TWENTY = (5, 5), (10, 1), (20, 1)
"""Folds, and the seeds of each; with one seed, five take turns."""


def two(
    random: np.random.Generator, of_articles: float, of_folds: float, of_runs: float, rest: float, effect: float = 0.0,
    first: tuple[int, int] = FIVE,
) -> tuple[Look, Look]:  # fmt: skip
    """A first look, then twenty folds of two articles in another order."""
    articles = random.normal(effect, of_articles, NUM_ARTICLES)
    orders = np.arange(NUM_ARTICLES), random.permutation(NUM_ARTICLES)
    one, other = (
        look(random, articles, order, folds, seeds, of_folds, of_runs, rest)
        for order, (folds, seeds) in zip(orders, (first, TWENTY), strict=True)
    )
    return one, other


def test_the_mean_of_both_is_by_the_formula() -> None:
    first, second = two(np.random.default_rng(0), 0.03, 0.01, 0.01, 0.02)

    result = mean_of_both(first, second)

    by_look = []
    for each in (first, second):
        folds, _, size = each.own.shape
        mean = {
            each.articles[fold * size + place]: float((each.own - each.baseline)[fold, :, place].mean())
            for fold in range(folds) for place in range(size)
        }  # fmt: skip
        by_look.append(mean)
    one, other = (np.array([mean[name] for name in sorted(mean)]) for mean in by_look)
    covariance = ((one - one.mean()) * (other - other.mean())).sum() / 39 / 40
    errors, degrees = zip(*((m.error, m.degrees) for m in map(mean_difference, (
        first.own - first.baseline, second.own - second.baseline
    ))), strict=True)  # fmt: skip
    variance = errors[0] ** 2 / 4 + errors[1] ** 2 / 4 + covariance / 2
    spread = (
        (errors[0] ** 2 / 4) ** 2 / degrees[0] + (errors[1] ** 2 / 4) ** 2 / degrees[1] + (covariance / 2) ** 2 / 39
    )
    assert covariance > 0
    assert result.value == pytest.approx((one.mean() + other.mean()) / 2)
    assert result.error == pytest.approx(variance**0.5)
    assert result.degrees == pytest.approx(min(39, variance**2 / spread))
    assert (result.seeds, result.queries) == (45, 40)


@pytest.mark.parametrize(
    ("design", "of_articles", "of_folds", "of_runs", "rest"),
    [
        (FIVE, 0.009, 0.004, 0.0, 0.023), (FIVE, 0.033, 0.029, 0.02, 0.044), (FIVE, 0.017, 0.0, 0.0, 0.0),
        (TEN, 0.017, 0.017, 0.0, 0.017),
    ],
    ids=["CPDAE fine-tuned", "CPDAE with 100 questions", "articles only", "DupMAE"],
)  # fmt: skip
def test_the_interval_has_the_mean_in_95_of_100_studies(
    design: tuple[int, int], of_articles: float, of_folds: float, of_runs: float, rest: float
) -> None:
    """With variances like those of the study's differences."""
    random = np.random.default_rng(1)
    studies = [mean_of_both(*two(random, of_articles, of_folds, of_runs, rest, first=design)) for _ in range(1000)]

    inside = [low <= 0 <= high for low, high in (study.interval() for study in studies)]
    drawn = float(np.std([study.value for study in studies]))
    assert 0.93 < np.mean(inside) < 0.975
    assert np.mean([study.p() < 0.0026 for study in studies]) < 0.01
    assert np.sqrt(np.mean([study.error**2 for study in studies])) == pytest.approx(drawn, rel=0.1)


def test_two_looks_are_compared_together() -> None:
    first, second = two(np.random.default_rng(2), 0.02, 0.0, 0.0, 0.02, effect=0.008)

    both = compare_systems("a", "b", first, second)

    assert both.difference == mean_of_both(first, second)
    assert [one.value for one in both.of_looks] == pytest.approx([np.mean(each.own - each.baseline)
                                                                 for each in (first, second)])  # fmt: skip
    assert both.values == pytest.approx(((first.own.mean() + second.own.mean()) / 2,
                                         (first.baseline.mean() + second.baseline.mean()) / 2))  # fmt: skip
    assert both.by_seed == pytest.approx([*first.by_seed, *second.by_seed])
    assert len(both.by_seed) == 10
    assert both.p_seeds is None


def test_the_randomisation_test_of_two_looks_is_of_the_articles_means_in_both() -> None:
    first, second = two(np.random.default_rng(4), 0.02, 0.01, 0.0, 0.02, effect=0.009)
    by_name: dict[str, float] = dict.fromkeys(first.articles, 0.0)
    for each in (first, second):
        folds, _, size = each.own.shape
        for fold in range(folds):
            for place in range(size):
                name = each.articles[fold * size + place]
                by_name[name] += float((each.own - each.baseline)[fold, :, place].mean()) / 2
    means = np.array([by_name[name] for name in sorted(by_name)])
    signs = np.random.default_rng(9).choice([-1, 1], (20_000, NUM_ARTICLES))
    by_hand = np.mean(np.abs(signs @ means) >= abs(means.sum()))
    assert 0.02 < by_hand < 0.5

    assert compare_systems("a", "b", first, second).p_randomisation == pytest.approx(by_hand, abs=0.02)


def test_every_p_of_a_study_with_a_second_look_counts_twice() -> None:
    first, second = two(np.random.default_rng(2), 0.02, 0.0, 0.0, 0.02, effect=0.008)
    both = replace(compare_systems("a", "b", first, second), second_runs=(40, 40))
    waiting = replace(compare_systems("a", "b", first), second_runs=(39, 40))
    alone = compare_systems("a", "b", first)

    [once] = with_verdicts([alone])
    [decided, other] = with_verdicts([both, replace(alone, p=0.5)])
    [early] = with_verdicts([waiting])

    assert both.p is not None
    assert once.p_holm == alone.p is not None
    assert decided.p_holm == pytest.approx(min(1, 2 * 2 * both.p))
    assert other.p_holm == 1.0
    assert early.p_holm == pytest.approx(2 * alone.p)
    assert (early.detectable or 0) > (once.detectable or 1)


def test_looks_at_other_articles_are_refused() -> None:
    first, second = two(np.random.default_rng(3), 0.02, 0.0, 0.0, 0.02)

    with pytest.raises(ValueError, match="the same articles in both looks"):
        mean_of_both(first, replace(second, articles=[*second.articles[:-1], "another"]))
    twice = [*first.articles[:-1], first.articles[0]]
    with pytest.raises(ValueError, match="each in one fold"):
        mean_of_both(replace(first, articles=twice), replace(second, articles=twice))
