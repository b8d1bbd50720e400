"""Verdicts follow from numbers alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from storage.errors import UserError
from tasks.evaluation.claim_verdicts import (
    REST,
    SEED_SIGMA,
    SystemComparison,
    claim_verdict,
    compare_costs,
    compare_systems,
    minimum_detectable_effect,
    with_verdicts,
)
from tasks.evaluation.seeds_by_queries import mean_difference
from tasks.evaluation.two_looks import Look


def contrast(effect: float, *, noise: float = 0.2, seed: int = 0) -> SystemComparison:
    """Three seeds of 300 queries, whose arms differ by so much on average."""
    random = np.random.default_rng(seed)
    than = [random.uniform(0, 1, 300) for _ in range(3)]
    own = np.stack([value + effect + random.normal(0, noise, 300) for value in than])
    return compare_systems("a", "b", Look(own, np.stack(than)))


def test_a_large_difference_holds_or_contradicts_and_a_small_one_does_not_show() -> None:
    results = with_verdicts(
        [contrast(0.1), contrast(-0.1), contrast(0.005), SystemComparison("a", "b", missing=["x (seed 1)"])]
    )

    assert [claim.verdict for claim in results] == ["supported", "contradicted", "inconclusive", "not run"]
    assert results[0].difference is not None
    assert results[0].low is not None
    assert results[0].low < results[0].difference.value < (results[0].high or 0)
    assert results[2].detectable is not None
    assert results[2].detectable > 0.02
    assert (results[0].p_randomisation or 1) < 0.001
    assert results[3].p_holm is None


def test_holms_correction_is_over_all_contrasts_so_that_what_holds_stays() -> None:
    one, missing = contrast(0.03, seed=4), SystemComparison("a", "b", missing=["x"])
    assert one.p is not None
    assert 0.01 < one.p < 0.05

    alone = with_verdicts([one])
    early, late = (
        with_verdicts([one, *[missing] * 5]),
        with_verdicts([one, *(contrast(0.0, seed=seed) for seed in range(5))]),
    )

    assert alone[0].p_holm == one.p
    assert alone[0].verdict == "supported"
    assert early[0] == late[0]
    assert early[0].p_holm == pytest.approx(6 * one.p)
    assert early[0].verdict == "inconclusive"
    assert (early[0].detectable or 0) > (alone[0].detectable or 1)
    assert early[1] == missing


def test_a_small_interval_around_zero_is_bounded_by_half_of_the_papers_difference() -> None:
    close = contrast(0.005)
    assert close.low is not None
    assert close.high is not None
    reach = max(-close.low, close.high)
    effects = (2.01 * reach, -2.01 * reach, 1.99 * reach, None)

    [larger, opposite, smaller, unprinted, clear] = with_verdicts(
        [*(replace(close, printed=effect) for effect in effects), replace(contrast(0.1), printed=1.0)]
    )

    assert [larger.verdict, opposite.verdict] == ["bounded", "bounded"]
    assert [smaller.verdict, unprinted.verdict] == ["inconclusive", "inconclusive"]
    assert clear.verdict == "supported"  # although it is far below half of the paper's


def test_p_over_the_seeds_alone_is_that_of_their_means() -> None:
    result = contrast(0.03, seed=4)
    means = np.array(result.by_seed)
    by_hand = means.mean() / (means.std(ddof=1) / math.sqrt(3))

    assert result.p_seeds == pytest.approx(2 * t.sf(abs(by_hand), 2))
    assert compare_systems("a", "b", Look(np.ones((1, 3)), np.zeros((1, 3)))).p_seeds is None
    assert compare_systems("a", "b", Look(np.ones((2, 3)), np.zeros((2, 3)))).p_seeds is None


def test_a_claims_verdict_is_that_of_all_its_contrasts() -> None:
    assert claim_verdict(["supported", "supported"]) == "supported"
    assert claim_verdict(["supported", "inconclusive"]) == "inconclusive"
    assert claim_verdict(["supported", "not run"]) == "not run"
    assert claim_verdict(["inconclusive", "not run", "contradicted"]) == "contradicted"
    assert claim_verdict(["supported", "bounded"]) == "bounded"
    assert claim_verdict(["bounded", "inconclusive"]) == "inconclusive"


def test_arms_of_other_seeds_or_queries_are_refused() -> None:
    with pytest.raises(UserError, match="the same runs and queries"):
        compare_systems("a", "b", Look(np.zeros((1, 3)), np.zeros((2, 3))))


def test_the_smallest_difference_falls_with_the_queries_and_grows_with_the_family() -> None:
    usual = minimum_detectable_effect("MRR@10", 1000, 1, 10)

    assert minimum_detectable_effect("MRR@10", 4000, 1, 10) < usual < minimum_detectable_effect("MRR@10", 1000, 1, 100)
    assert usual < minimum_detectable_effect("recall@10", 1000, 1, 10)
    assert (
        minimum_detectable_effect("MRR@10", 1000, 5, 10)
        < minimum_detectable_effect("MRR@10", 1000, 3, 10)
        < minimum_detectable_effect("MRR@10", 1000, 3, 100)
    )
    # Of one test of very many queries: 1.96 + 0.84 standard errors.
    assert minimum_detectable_effect("MRR@10", 100_000, 1, 1) == pytest.approx(
        2.80 * 0.38 * math.sqrt(0.4 / 100_000), rel=1e-3
    )


def test_four_studies_of_five_show_the_smallest_difference() -> None:
    """Whole tables of seeds and queries, decided as a contrast is."""
    random, queries, seeds, family = np.random.default_rng(5), 400, 3, 4
    variance, effect = 0.4 * 0.38**2, minimum_detectable_effect("MRR@10", 400, 3, 4)
    result = 0
    for _ in range(600):
        table = (
            effect + random.normal(0, math.sqrt((1 - REST) * variance), (1, queries))
            + random.normal(0, SEED_SIGMA * math.sqrt(2), (seeds, 1))
            + random.normal(0, math.sqrt(REST * variance), (seeds, queries))
        )  # fmt: skip
        result += mean_difference(table).p() < 0.05 / family and table.mean() > 0

    assert 0.75 < result / 600 < 0.85


def test_cheaper_is_a_ratio_with_an_interval_over_the_seeds() -> None:
    result = compare_costs("a", "b", [1, 2, 3], ([1.0, 1.1, 2.1], [2.0, 2.0, 4.0]), (1e9, 4e9))

    ratios = [0.5, 0.55, 0.525]
    assert result.ratio == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert result.verdict == "supported"
    assert (result.high or 1) < 0.6
    assert compare_costs("a", "b", [1, 2], ([2.0, 2.0], [1.0, 1.01]), (1.0, 1.0)).verdict == "contradicted"
    assert compare_costs("a", "b", [1, 2, 3], ([1.0, 2.0, 1.0], [1.1, 1.5, 1.0]), (1.0, 1.0)).verdict == "inconclusive"
    assert (
        compare_costs("a", "b", [1], ([1.0], [2.0]), (1.0, 1.0)).verdict == "inconclusive"
    )  # one seed has no interval
    assert replace(result, verdict="not run").missing == ()
    in_two_folds = compare_costs("a", "b", [1, 2, 3, 1, 2, 3], ([1.0, 1.1, 2.1] * 2, [2.0, 2.0, 4.0] * 2), (1e9, 4e9))
    assert in_two_folds.high == pytest.approx(result.high)  # what folds share is no further measurement
