"""A run compared with its paper: each printed number with ours, and our rows among the paper's systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.results.paper_results import (
    PaperNumber,
    PaperRow,
    beir_rows,
    matching_row,
    paper_collection,
    paper_numbers,
    paper_rows,
    parse_citation,
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """What was measured on one split of one collection."""

    rows: Sequence[Row]
    intervals: Sequence[Row]
    comparisons: Sequence[Row]
    by_query: pa.Table
    key: str

    @property
    def split(self) -> str:
        """Of the collection."""
        return str(self.rows[0]["split"])

    @property
    def dataset(self) -> str:
        """The collection."""
        return str(self.rows[0]["dataset"])

    def value(self, run: str, metric: str) -> float | None:
        """The mean of a run, if it was measured; the case of the metric's name does not matter."""
        return next(
            (row["value"] for row in self.rows if (row["run"], row["metric"].lower()) == (run, metric.lower())), None
        )

    def content(self) -> dict[str, Any]:
        """What `report.json` says of it."""
        return {"rows": self.rows, "intervals": self.intervals, "comparisons": self.comparisons, "key": self.key}


def beside(
    reported: Mapping[str, Any], main: str, splits: Sequence[Measured], others: Mapping[str, Sequence[Measured]]
) -> list[dict[str, Any]]:
    """Every number that the recipe says its paper prints, with ours and how surely the two differ.

    The first of `splits` is that of the headline; `others` are other collections by the name that a mean counts
    once. The interval is that of our mean over queries and `p` of a t-test of our queries' values against the paper's
    number: of the paper's own spread nothing is known.
    """
    return [_compared(each, main, splits, others) for each in paper_numbers(reported, main)]


def _compared(
    theirs: PaperNumber, main: str, splits: Sequence[Measured], others: Mapping[str, Sequence[Measured]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"run": theirs.run, "metric": theirs.words, "theirs": theirs.value, "ours": None,
                           "difference": None, "low": None, "high": None, "p": None}  # fmt: skip
    if theirs.sets is not None:
        row["ours"] = mean_over(main, theirs.metric, others) if len(others) == theirs.sets else None
    elif found := next((each for each in splits if theirs.split in (None, each.split)), None):
        row["ours"] = found.value(theirs.run, theirs.metric)
        row |= _tested(found, theirs) if row["ours"] is not None else {}
    if row["ours"] is not None:
        row["difference"] = row["ours"] - theirs.value
    return row


def mean_over(run: str, metric: str, others: Mapping[str, Sequence[Measured]]) -> float | None:
    """The mean over collections, where those of one name count once; None where one was not measured."""
    found = [[each.value(run, metric) for each in group] for group in others.values()]
    values = [[one for one in group if one is not None] for group in found]
    if not values or any(len(one) < len(all_of) or not one for one, all_of in zip(values, found, strict=True)):
        return None
    return fmean(fmean(group) for group in values)


def _tested(found: Measured, theirs: PaperNumber) -> dict[str, float]:
    """Our interval, and the p of Student's one-sample test that the mean of our queries is the paper's number."""
    from scipy.stats import ttest_1samp

    name = theirs.metric.lower()
    span = next(row for row in found.intervals if (row["run"], row["metric"].lower()) == (theirs.run, name))
    chosen = pc.and_(pc.equal(found.by_query["run"], theirs.run), pc.equal(found.by_query["metric"], span["metric"]))
    values = found.by_query.filter(chosen)["value"].to_numpy()
    if np.ptp(values) == 0:  # no spread, no test: a mean of equal values is the number, or is not
        return {"low": span["low"], "high": span["high"], "p": float(values[0] == theirs.value)}
    return {"low": span["low"], "high": span["high"], "p": float(ttest_1samp(values, theirs.value).pvalue)}


def among(reported: Mapping[str, Any], main: str, metric: str, splits: Sequence[Measured]) -> list[dict[str, Any]]:
    """For each split that the paper's tables have too: its systems by `metric`, ours next to what they reproduce.

    Where a split has not the headline's metric, its first stands for it.
    """
    source = parse_citation(str(reported.get("source", "")))
    tables = []
    for number, found in enumerate(splits):
        theirs = paper_rows(source, paper_collection(found.dataset, found.split)) if source else []
        metrics = [each for each in dict.fromkeys(row["metric"] for row in found.rows)
                   if any(each in line.values for line in theirs)]  # fmt: skip
        if source and metrics:
            first = metric if metric in metrics else metrics[0]
            wanted = [each for each in paper_numbers(reported, main) if each.sets is None
                      and (each.split == found.split or (each.split is None and number == 0))]  # fmt: skip
            tables.append({
                "paper": source.paper, "tables": list(source.tables), "dataset": found.dataset, "split": found.split,
                "collection": paper_collection(found.dataset, found.split), "metric": first, "metrics": metrics,
                "lines": _ordered(theirs, _ours(found, wanted, theirs, first), first),
            })  # fmt: skip
    return tables


def among_elsewhere(reported: Mapping[str, Any], others: Mapping[str, Sequence[Measured]]) -> list[dict[str, Any]]:
    """The paper's systems on other collections, by the names that these have here."""
    source = parse_citation(str(reported.get("source", "")))
    if source is None or not others:
        return []
    metric = next(iter(others.values()))[0].rows[0]["metric"]
    return [
        {"name": line.name, "table": line.table, "values": dict(line.values)}
        for line in beir_rows(source, list(others), metric)
    ]


def _ours(
    found: Measured, wanted: Sequence[PaperNumber], theirs: Sequence[PaperRow], metric: str
) -> list[dict[str, Any]]:
    """Our rows: those with a number of the paper, and BM25."""
    rows = []
    measured = dict.fromkeys(row["run"] for row in found.rows)
    named = {each.run for each in wanted}
    for run in [run for run in measured if run in named or run == "bm25"]:
        values = {row["metric"]: row["value"] for row in found.rows if row["run"] == run}
        span = next((row for row in found.intervals if (row["run"], row["metric"]) == (run, metric)), None)
        line = matching_row(theirs, {each.metric: each.value for each in wanted if each.run == run})
        if run == "bm25" and line is None:
            line = next((each for each in theirs if each.system == "BM25"), None)
        rows.append({
            "name": run, "table": None, "ours": True, "values": values,
            "reproduces": line and {"name": line.name, "values": dict(line.values)},
            "low": span and span["low"], "high": span and span["high"],
        })  # fmt: skip
    return rows


def _ordered(theirs: Sequence[PaperRow], ours: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Systems by the metric, rising, each with those of ours that reproduce it below it; the rest of ours by theirs.

    A system that several tables print alike is one line; one that says nothing of the metric is left out.
    """
    merged: dict[tuple[str, float], dict[str, Any]] = {}
    for line in theirs:
        if metric in line.values:
            alike = merged.setdefault((line.name, line.values[metric]), {
                "name": line.name, "table": line.table, "ours": False, "values": {},
            })  # fmt: skip
            alike["values"] = {**line.values, **alike["values"]}
    shown = [each for each in ours if metric in each["values"]]
    beside: dict[tuple[str, float] | None, list[dict[str, Any]]] = {}
    for each in shown:
        named = each["reproduces"]
        beside.setdefault(named and (named["name"], named["values"].get(metric)), []).append(each)
    found = [(key[1], [line, *beside.pop(key, [])]) for key, line in merged.items()]
    found += [(each["values"][metric], [each]) for rest in beside.values() for each in rest]
    return [line for _, group in sorted(found, key=lambda each: each[0]) for line in group]
