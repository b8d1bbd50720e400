"""Means and tests over seeds and queries, against the formulas on small tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
from scipy.stats import t, ttest_rel

from storage.errors import UserError
from tasks.evaluation.grid_statistics import Measured, RunOverSeeds, corrected, difference

QUERIES = [f"q{n:02}" for n in range(30)]


def measured(tables: dict[int, np.ndarray], run: str = "r", queries: list[str] = QUERIES) -> Measured:
    """Values [queries] of a run for each seed."""
    return Measured({seed: {(run, "MRR@10"): pandas.Series(values, queries)} for seed, values in tables.items()})


def values(seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.2, 0.6, len(QUERIES)) + shift


def quasi_f(table: np.ndarray) -> tuple[float, float]:
    """The squared standard error and the degrees of freedom of a mean over seeds and queries, cell by cell."""
    seeds, queries = table.shape
    mean = table.mean()
    between_seeds = sum(queries * (row.mean() - mean) ** 2 for row in table) / (seeds - 1)
    between_queries = sum(seeds * (column.mean() - mean) ** 2 for column in table.T) / (queries - 1)
    rest = sum(
        (table[s, q] - table[s].mean() - table[:, q].mean() + mean) ** 2 for s in range(seeds) for q in range(queries)
    ) / ((seeds - 1) * (queries - 1))
    assert between_seeds > rest < between_queries  # else a component counts as 0
    total = between_seeds + between_queries - rest
    squares = (
        between_seeds**2 / (seeds - 1) + between_queries**2 / (queries - 1) + rest**2 / ((seeds - 1) * (queries - 1))
    )
    return total / table.size, total**2 / squares


def test_a_mean_and_its_interval_are_those_of_seeds_by_queries() -> None:
    by_query = values(9)
    tables = {seed: by_query + 0.02 * seed + values(seed) / 10 for seed in (1, 2, 3)}
    table = np.stack(list(tables.values()))

    row = RunOverSeeds(measured(tables), "r").mean("MRR@10")

    squared_error, degrees = quasi_f(table)
    half = t.ppf(0.975, degrees) * squared_error**0.5
    assert row["mean"] == pytest.approx(table.mean())
    assert (row["low"], row["high"]) == pytest.approx((table.mean() - half, table.mean() + half))
    assert row["by_seed"] == pytest.approx({"1": tables[1].mean(), "2": tables[2].mean(), "3": tables[3].mean()})
    assert (row["seeds"], row["queries"]) == (3, 30)


def test_an_interval_stays_within_what_a_metric_can_be() -> None:
    row = RunOverSeeds(measured({1: np.array([1.0] * 29 + [0.9])}), "r").mean("MRR@10")

    assert row["high"] == 1.0


def test_with_one_seed_the_test_is_the_paired_t_test() -> None:
    ours, theirs = measured({7: values(1, 0.1)}), measured({7: values(2)})

    row = difference(RunOverSeeds(ours, "r"), RunOverSeeds(theirs, "r"), "MRR@10")

    assert row is not None
    assert row["p"] == pytest.approx(ttest_rel(values(1, 0.1), values(2)).pvalue)
    assert row["difference"] == pytest.approx((values(1, 0.1) - values(2)).mean())


def test_systems_are_compared_in_the_seeds_that_both_have() -> None:
    ours = measured({seed: values(seed, 0.1) for seed in (1, 2, 3)})
    theirs = measured({seed: values(seed + 10) for seed in (2, 3, 4)})

    row = difference(RunOverSeeds(ours, "r"), RunOverSeeds(theirs, "r"), "MRR@10")

    expected = np.stack([values(seed, 0.1) - values(seed + 10) for seed in (2, 3)])
    assert row is not None
    assert row["seeds"] == 2
    assert row["difference"] == pytest.approx(expected.mean())
    assert difference(RunOverSeeds(ours, "r"), RunOverSeeds(measured({9: values(9)}), "r"), "MRR@10") is None


def test_other_queries_are_not_compared() -> None:
    others = [f"x{n:02}" for n in range(30)]

    assert difference(
        RunOverSeeds(measured({1: values(1)}), "r"), RunOverSeeds(measured({1: values(1)}, queries=others), "r"),
        "MRR@10",
    ) is None  # fmt: skip
    mixed = Measured({**measured({1: values(1)}).by_seed, **measured({2: values(2)}, queries=others).by_seed})
    with pytest.raises(UserError, match="different queries"):
        RunOverSeeds(mixed, "r").mean("MRR@10")


def test_the_tests_of_a_metric_are_corrected_together() -> None:
    rows: list[dict[str, Any]] = [{"metric": "a", "p": 0.01}, {"metric": "b", "p": 0.04}, {"metric": "a", "p": 0.03}]

    assert [row["p_holm"] for row in corrected(rows)] == [0.02, 0.04, 0.03]
