"""Statistics of a report: confidence intervals, wins per query, and the result of a test in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

SIGNIFICANT = 0.05
EXAMPLES = 5  # queries shown per view
RANKS_SHOWN = 10  # the largest cutoff with a grid of ranks
TENTHS = 10

Row = Mapping[str, Any]


def headline_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the headline's split, which is that of the first row."""
    return [row for row in rows if row["split"] == rows[0]["split"]]


def intervals(by_query: pa.Table) -> list[dict[str, Any]]:
    """Return the 95 % confidence interval of each mean: Student's t over the queries, clipped to [0, 1]."""
    from scipy.stats import t

    groups = by_query.group_by(["run", "metric"], use_threads=False).aggregate(
        [("value", "count"), ("value", "mean"), ("value", "stddev", pc.VarianceOptions(ddof=1))]
    )
    rows = []
    for row in groups.to_pylist():
        num, mean, deviation = row["value_count"], row["value_mean"], row["value_stddev"] or 0.0
        half = float(t.ppf(0.975, num - 1)) * deviation / math.sqrt(num) if num > 1 else 0.0
        rows.append({"run": row["run"], "metric": row["metric"],
                      "low": max(0.0, mean - half), "high": min(1.0, mean + half)})  # fmt: skip
    return rows


def with_intervals(rows: Iterable[Row], spans: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the means `rows` with `low` and `high` of their intervals, or with None where there is no interval.

    They belong together by run and metric, and by dataset where the intervals are of several.
    """
    names = [name for name in ("dataset", "run", "metric") if all(name in span for span in spans)]
    by_name = {tuple(span[name] for name in names): span for span in spans}
    return [
        {**row, **{bound: by_name.get(tuple(row[name] for name in names), {}).get(bound) for bound in ("low", "high")}}
        for row in rows
    ]


def wins(by_query: pa.Table, comparisons: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    """Return for each compared pair the numbers of queries on which the run is better, equal and worse."""
    of_metric = by_query.filter(pc.equal(by_query["metric"], metric)).sort_by("query_id")
    values = {run: _values(of_metric, run) for run in pc.unique(of_metric["run"]).to_pylist()}
    rows = []
    for pair in comparisons:
        if pair["metric"] == metric:
            difference = values[pair["run"]] - values[pair["baseline"]]
            rows.append({
                "run": pair["run"], "baseline": pair["baseline"], "metric": metric,
                "better": int((difference > 0).sum()), "equal": int((difference == 0).sum()),
                "worse": int((difference < 0).sum()),
            })  # fmt: skip
    return rows


def grid(by_query: pa.Table, run: str, baseline: str, metric: str) -> dict[str, Any] | None:
    """Return the number of queries by their values in both runs; None if a run has no values.

    A reciprocal rank has few values, so its grid is one of ranks. Other metrics, and means of several samples, are
    rounded to tenths.
    """
    of_metric = by_query.filter(pc.equal(by_query["metric"], metric)).sort_by("query_id")
    ours, theirs = _values(of_metric, run), _values(of_metric, baseline)
    if not len(ours) or not len(theirs):
        return None
    name, _, cutoff = metric.partition("@")
    few = name == "MRR" and int(cutoff) <= RANKS_SHOWN
    if few and all(_are_ranks(values, int(cutoff)) for values in (ours, theirs)):
        ticks = ["none", *(str(rank) for rank in range(int(cutoff), 0, -1))]
        cells = [
            np.where(values > 0, int(cutoff) + 1 - np.rint(1 / np.maximum(values, 1e-9)), 0)
            for values in (ours, theirs)
        ]
    else:
        ticks = [f"{tenth / TENTHS:.1f}" for tenth in range(TENTHS + 1)]
        cells = [np.rint(TENTHS * values) for values in (ours, theirs)]
    pairs, counts = np.unique(np.stack(cells).astype(int), axis=1, return_counts=True)
    return {"run": run, "baseline": baseline, "metric": metric, "ticks": ticks,
            "cells": [{"run": int(x), "baseline": int(y), "queries": int(count)}
                      for x, y, count in zip(*pairs, counts, strict=True)]}  # fmt: skip


def _are_ranks(values: NDArray[np.float64], most: int) -> bool:
    """Return whether each value is 0 or one over a rank of at most `most`, which means of samples are not."""
    ranks = 1 / values[values > 0]
    return bool(np.all((ranks < most + 0.5) & np.isclose(ranks, np.rint(ranks))))


def clearest_wins(
    by_query: pa.Table, runs: Sequence[str], metric: str, texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return for each run its wins, where it is better than all others, the number of ties, and its clearest wins."""
    of_metric = by_query.filter(pc.equal(by_query["metric"], metric)).sort_by("query_id")
    values = np.stack([_values(of_metric, run) for run in runs])
    query_ids = of_metric.filter(pc.equal(of_metric["run"], runs[0]))["query_id"].to_pylist()
    best, rows = values.max(0), []
    shared = int(((values == best).sum(0) > 1).sum())
    for number, run in enumerate(runs):
        ahead = values[number] - np.delete(values, number, axis=0).max(0)
        clear = np.argsort(-ahead, kind="stable")[:EXAMPLES]
        rows.append({
            "run": run, "wins": int((ahead > 0).sum()), "shared": shared,
            "queries": [texts.get(query_ids[row], query_ids[row]) for row in clear if ahead[row] > 0],
        })  # fmt: skip
    return rows


def _values(rows: pa.Table, run: str) -> NDArray[np.float64]:
    return np.asarray(rows.filter(pc.equal(rows["run"], run))["value"], dtype=np.float64)


def direction(row: Row) -> int:
    """Return 1 if the run is significantly better than its baseline, -1 if it is worse, else 0."""
    if row["p_holm"] >= SIGNIFICANT or row["difference"] == 0:
        return 0
    return 1 if row["difference"] > 0 else -1


def marks(comparisons: Sequence[Row], baseline: str) -> dict[tuple[str, str], int]:
    """Return the direction of each test against a baseline, by run and metric."""
    return {(row["run"], row["metric"]): direction(row) for row in comparisons if row["baseline"] == baseline}


def highest(rows: Sequence[Row], main: str, metric: str) -> str:
    """Return which system has the highest mean of a metric, and the mean of the headline's system if it is another.

    `rows` are those of one split: `highest MRR@10: hybrid, 0.880 (retriever_2: 0.790)`.
    """
    values = {row["run"]: row["value"] for row in rows if row["metric"] == metric}
    best = max(values, key=lambda run: (round(values[run], 3), run == main))
    ours = "" if best == main else f" ({main}: {values[main]:.3f})"
    return f"highest {metric}: {best}, {values[best]:.3f}{ours}"


def equal_metrics(rows: Sequence[Row]) -> list[str]:
    """Return a sentence about each metric that has the values of an earlier one in every system of `rows`.

    Recall equals success where each query has one relevant document.
    """
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        values.setdefault(row["metric"], {})[row["run"]] = row["value"]
    first: dict[tuple[tuple[str, float], ...], str] = {}
    sentences = []
    for metric, by_run in values.items():
        same = first.setdefault(tuple(sorted(by_run.items())), metric)
        if same != metric:
            sentences.append(f"{metric} equals {same} here, in every system")
    return sentences


def mark(sign: int) -> str:
    """Return the symbol of a direction in tables."""
    return {1: "▲", -1: "▼"}.get(sign, "")


def verdict(row: Row) -> str:
    """Return a test in words: `retriever_2 is better than bm25: +0.050 MRR@10 (p_holm = 0.0012)`."""
    words = {1: "is better than", -1: "is worse than", 0: "is not significantly different from"}[direction(row)]
    return f"{row['run']} {words} {row['baseline']}: {_change(row, row['metric'])}"


def claimed(claim: Row, metric: str) -> str:
    """Return a claim and the decision about it in words."""
    decision = "supported" if claim["supported"] else "not supported"
    return f"{claim_in_words(claim)}: {decision}, {_change(claim, metric)}"


def _change(test: Row, metric: str) -> str:
    return f"{signed(test['difference'])} {metric} (p_holm {probability(test['p_holm'])})"


def signed(value: float) -> str:
    """Format a difference with its sign: `+0.046`, `−0.012`."""
    return f"{'−' if value < 0 else '+'}{abs(value):.3f}"


def claim_in_words(claim: Row) -> str:
    """Return a claim in words: `hybrid is better than bm25`."""
    words = {"better": "is better than", "not worse": "is not significantly worse than"}[claim["expected"]]
    return f"{claim['run']} {words} {claim['baseline']}"


def probability(p: float) -> str:
    """Format a p-value with its sign: `= 0.012`, or `< 0.0001`."""
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"


def top(values: Sequence[float]) -> float:
    """Return the end of an axis that begins at 0: the next of 0.05, 0.1, 0.2, 0.3 … 1 above the values."""
    largest = max(values, default=0.0)
    steps = [0.05, *(number / 10 for number in range(1, 11))]
    return next((step for step in steps if largest <= step), largest)
