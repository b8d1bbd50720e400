"""Statistics that a report shows: wins, intervals, verdicts."""

from typing import Any

import pytest
from scipy import stats

from storage.artifact import Artifact
from tasks.report.page.statistics import (
    clearest_wins,
    direction,
    equal_metrics,
    highest,
    intervals,
    top,
    verdict,
    wins,
    with_intervals,
)
from tests.tasks.report.measurements import by_query, comparison


def test_wins_need_all_others_to_be_worse() -> None:
    values = {"a": [1.0, 0.5, 0.0, 0.2], "b": [0.5, 0.5, 0.0, 0.9], "c": [0.9, 0.1, 0.0, 0.1]}

    results = clearest_wins(by_query(values).take([5, 1, 0, 3, 2, 4, *range(6, 12)]), ["a", "b", "c"], "MRR@10", {})

    assert [(row["wins"], row["shared"], row["queries"]) for row in results] == [
        (1, 2, ["q0"]), (1, 2, ["q3"]), (0, 2, [])
    ]  # fmt: skip


def test_the_interval_is_students(metrics: Artifact[Any]) -> None:
    results = {row["run"]: row for row in intervals(by_query({"bm25": [0.2, 0.4, 0.6, 0.5], "dense": [1.0] * 4}))}

    low, high = stats.ttest_1samp([0.2, 0.4, 0.6, 0.5], 0).confidence_interval(0.95)
    assert results["bm25"]["low"] == pytest.approx(low)
    assert results["bm25"]["high"] == pytest.approx(high)
    assert (results["dense"]["low"], results["dense"]["high"]) == (1.0, 1.0)


def test_means_have_the_interval_of_their_run_and_metric() -> None:
    rows = [{"run": run, "metric": "MRR@10", "value": 0.5} for run in ("a", "b")]
    spans = [{"run": "a", "metric": metric, "low": low, "high": 0.9} for metric, low in (("MRR@10", 0.1), ("MAP", 0.2))]

    results = with_intervals(rows, spans)

    assert results == [rows[0] | {"low": 0.1, "high": 0.9}, rows[1] | {"low": None, "high": None}]
    datasets = [row | {"dataset": name} for name in ("x", "y") for row in rows[:1]]
    assert [row["low"] for row in with_intervals(datasets, [spans[0] | {"dataset": "y"}])] == [None, 0.1]


def test_wins_are_counted_by_query_not_by_row() -> None:
    rows = by_query()
    shuffled = rows.take([3, 0, 2, 1, 4, 6, 7, 5])

    results = wins(shuffled, [comparison(), comparison(metric="recall@50")], "MRR@10")

    assert results == [{"run": "dense", "baseline": "bm25", "metric": "MRR@10", "better": 2, "equal": 2, "worse": 0}]


@pytest.mark.parametrize(
    ("changes", "sign", "words"),
    [
        ({}, 1, "dense is better than bm25: +0.312 MRR@10 (p_holm = 0.03)"),
        ({"difference": -0.2}, -1, "dense is worse than bm25: −0.200 MRR@10 (p_holm = 0.03)"),
        ({"p_holm": 0.05}, 0, "dense is not significantly different from bm25: +0.312 MRR@10 (p_holm = 0.05)"),
        ({"p_holm": 1e-12}, 1, "dense is better than bm25: +0.312 MRR@10 (p_holm < 0.0001)"),
    ],
)
def test_a_verdict_follows_the_corrected_p(changes: dict[str, Any], sign: int, words: str) -> None:
    assert direction(comparison(**changes)) == sign
    assert verdict(comparison(**changes)) == words


@pytest.mark.parametrize(
    ("values", "end"), [([0.03], 0.05), ([0.12, 0.31], 0.4), ([0.4], 0.4), ([], 0.05), ([1.0], 1.0)]
)
def test_an_axis_ends_at_a_round_number(values: list[float], end: float) -> None:
    assert top(values) == end


ROWS = [
    {"run": run, "metric": metric, "value": value}
    for run, values in {"bm25": (0.8, 0.9, 0.9), "dense": (0.7, 0.6, 0.6), "hybrid": (0.85, 0.95, 0.95)}.items()
    for metric, value in zip(("MRR@10", "recall@50", "success@50"), values, strict=True)
]


def test_the_best_system_is_named_with_the_headlines() -> None:
    assert highest(ROWS, "dense", "MRR@10") == "highest MRR@10: hybrid, 0.850 (dense: 0.700)"
    assert highest(ROWS, "hybrid", "recall@50") == "highest recall@50: hybrid, 0.950"


def test_metrics_with_equal_values_in_every_system_are_named() -> None:
    assert equal_metrics(ROWS) == ["success@50 equals recall@50 here, in every system"]
    assert equal_metrics([*ROWS[:-1], ROWS[-1] | {"value": 0.96}]) == []


def test_a_tie_of_printed_values_is_the_headlines() -> None:
    rows = [{"run": run, "metric": "MRR@10", "value": value} for run, value in (("bm25", 0.50004), ("dense", 0.5))]

    assert highest(rows, "dense", "MRR@10") == "highest MRR@10: dense, 0.500"
