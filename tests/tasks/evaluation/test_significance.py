"""Paired tests against scipy, by enumeration and by hand."""

import warnings
from itertools import product

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from tasks.evaluation.significance import clustered_t_test, holm, paired_t_test, randomisation_test

RUN = np.array([0.9, 0.5, 0.7, 1.0, 0.2, 0.6, 0.8, 0.4, 0.3, 0.9])
BASELINE = np.array([0.5, 0.5, 0.4, 0.9, 0.3, 0.1, 0.6, 0.4, 0.0, 0.5])


def test_the_t_test_equals_scipys() -> None:
    assert paired_t_test(RUN, BASELINE) == pytest.approx(ttest_rel(RUN, BASELINE).pvalue, rel=1e-12)


def test_with_one_query_a_cluster_is_a_query() -> None:
    alone = [str(number) for number in range(len(RUN))]

    assert clustered_t_test(RUN, BASELINE, alone) == pytest.approx(paired_t_test(RUN, BASELINE), rel=1e-12)


def test_clusters_of_equal_size_are_tested_by_their_means() -> None:
    clusters, means = ["b", "a", "c", "d", "e"] * 2, [(values[:5] + values[5:]) / 2 for values in (RUN, BASELINE)]

    assert clustered_t_test(RUN, BASELINE, clusters) == pytest.approx(ttest_rel(*means).pvalue, rel=1e-12)


def test_clusters_of_any_size_have_the_robust_standard_error() -> None:
    clusters, differences = "aaaabbcddd", RUN - BASELINE
    mean = sum(differences) / 10
    variance = 0.0
    for one, first in zip(differences, clusters, strict=True):
        for other, second in zip(differences, clusters, strict=True):
            variance += (one - mean) * (other - mean) * (first == second) / 100
    expected = 2 * t.sf(abs(mean) / np.sqrt(variance * 4 / 3), 3)

    assert clustered_t_test(RUN, BASELINE, list(clusters)) == pytest.approx(expected, rel=1e-12)
    assert clustered_t_test(RUN, RUN, list(clusters)) == 1.0
    assert clustered_t_test(RUN, BASELINE, ["a"] * 10) == 1.0
    assert clustered_t_test(RUN + 1, RUN, list(clusters)) == 2.0**-3


def test_equal_runs_do_not_differ() -> None:
    assert paired_t_test(RUN, RUN) == 1.0
    assert randomisation_test(RUN, RUN, resamples=10_000, seed=1) == 1.0


def test_randomisation_approximates_the_enumeration_of_all_signs() -> None:
    difference = RUN - BASELINE
    sums = [abs(np.dot(signs, difference)) for signs in product((-1, 1), repeat=len(difference))]
    exact = np.mean(np.array(sums) >= abs(difference.sum()) - 1e-12)
    drawn = randomisation_test(RUN, BASELINE, resamples=100_000, seed=1)
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact / 100_000))
    assert drawn == randomisation_test(RUN, BASELINE, resamples=100_000, seed=1)
    assert drawn == pytest.approx(randomisation_test(BASELINE, RUN, resamples=100_000, seed=2), abs=0.005)  # two-sided


def test_randomisation_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = randomisation_test(RUN, BASELINE, resamples=10_000, seed=1)
    monkeypatch.setattr("tasks.evaluation.significance.SIGNS_PER_BLOCK", 100)
    assert randomisation_test(RUN, BASELINE, resamples=10_000, seed=1) == pytest.approx(whole, abs=0.01)


def test_holm_by_hand() -> None:
    # Sorted .005 .01 .03 .04: times 4, 3, 2, 1, and never less than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("queries", [2, 3, 10])
def test_equal_differences_use_the_exact_sign_test(queries: int) -> None:
    baseline = np.arange(1, queries + 1) / 10  # whose differences are not exact in binary

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paired_t_test(baseline + 0.1, baseline) == 2.0 ** (1 - queries)
