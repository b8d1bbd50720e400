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


def two(
    random: np.random.Generator, of_articles: float, of_folds: float, of_runs: float, rest: float, effect: float = 0.0
) -> tuple[Look, Look]:
    """Five folds of eight articles with five seeds, then twenty folds of two in another order with one."""
    articles = random.normal(effect, of_articles, NUM_ARTICLES)
    orders = np.arange(NUM_ARTICLES), random.permutation(NUM_ARTICLES)
    first, second = (
        look(random, articles, order, folds, seeds, of_folds, of_runs, rest)
        for order, (folds, seeds) in zip(orders, ((5, 5), (20, 1)), strict=True)
    )
    return first, second


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
    ("of_articles", "of_folds", "of_runs", "rest"),
    [(0.009, 0.004, 0.0, 0.023), (0.033, 0.029, 0.02, 0.044), (0.017, 0.0, 0.0, 0.0)],
)
def test_the_interval_has_the_mean_in_95_of_100_studies(
    of_articles: float, of_folds: float, of_runs: float, rest: float
) -> None:
    """The first two as CPDAE's differences vary after fine-tuning and with 100 questions."""
    random = np.random.default_rng(1)
    studies = [mean_of_both(*two(random, of_articles, of_folds, of_runs, rest)) for _ in range(800)]

    inside = [low <= 0 <= high for low, high in (study.interval() for study in studies)]
    drawn = float(np.std([study.value for study in studies]))
    assert 0.93 < np.mean(inside) < 0.98
    assert np.sqrt(np.mean([study.error**2 for study in studies])) == pytest.approx(drawn, rel=0.1)


def test_two_looks_are_compared_together_and_their_p_counts_twice() -> None:
    first, second = two(np.random.default_rng(2), 0.02, 0.0, 0.0, 0.02, effect=0.008)
    both = replace(compare_systems("a", "b", first, second), second_runs=(40, 40))
    early = replace(compare_systems("a", "b", first), second_runs=(39, 40))
    alone = compare_systems("a", "b", first)

    [decided, *_], [waiting, *_], [once, *_] = (with_verdicts([one]) for one in (both, early, alone))

    assert both.p is not None
    assert early.p == alone.p is not None
    assert decided.p_holm == pytest.approx(2 * both.p)
    assert waiting.p_holm == pytest.approx(2 * early.p)
    assert once.p_holm == alone.p
    assert [one.value for one in both.of_looks] == pytest.approx([np.mean(each.own - each.baseline)
                                                                 for each in (first, second)])  # fmt: skip
    assert both.values == pytest.approx(((first.own.mean() + second.own.mean()) / 2,
                                         (first.baseline.mean() + second.baseline.mean()) / 2))  # fmt: skip
    assert len(both.by_seed) == 10
    assert (both.p_randomisation or 1) < 0.5
    assert (waiting.detectable or 0) > (once.detectable or 1)


def test_looks_at_other_articles_are_refused() -> None:
    first, second = two(np.random.default_rng(3), 0.02, 0.0, 0.0, 0.02)

    with pytest.raises(ValueError, match="the same articles in both looks"):
        mean_of_both(first, replace(second, articles=[*second.articles[:-1], "another"]))
    twice = [*first.articles[:-1], first.articles[0]]
    with pytest.raises(ValueError, match="each in one fold"):
        mean_of_both(replace(first, articles=twice), replace(second, articles=twice))
