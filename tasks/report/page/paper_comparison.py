"""A run compared with its paper: each reported number with ours, and our runs among the paper's systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.results.paper_results import PaperRow, RowName, beir_rows, paper_collection, paper_rows
from storage.results.reported import Reported, ReportedNumber, ReportedRun

Row = Mapping[str, Any]


@dataclass(frozen=True)
class SplitMeasurements:
    """The measurements on one split of one collection."""

    rows: Sequence[Row]
    intervals: Sequence[Row]
    comparisons: Sequence[Row]
    by_query: pa.Table
    key: str

    @property
    def split(self) -> str:
        """The split of the collection."""
        return str(self.rows[0]["split"])

    @property
    def dataset(self) -> str:
        """The collection."""
        return str(self.rows[0]["dataset"])

    def value(self, run: str, metric: str) -> float | None:
        """Return the mean of a run, if it was measured; the case of the metric's name does not matter."""
        return next(
            (row["value"] for row in self.rows if (row["run"], row["metric"].lower()) == (run, metric.lower())), None
        )

    def content(self) -> dict[str, Any]:
        """Return the measurements as `report.json` has them."""
        return {"rows": self.rows, "intervals": self.intervals, "comparisons": self.comparisons, "key": self.key}


def compared_numbers(
    reported: Reported, splits: Sequence[SplitMeasurements], others: Mapping[str, Sequence[SplitMeasurements]]
) -> list[dict[str, Any]]:
    """Return each number of the recipe's `reported` with ours, and with the row of the paper that prints it.

    The first of `splits` is that of the headline; `others` are other collections, by the name under which a mean counts
    them once. The interval is that of our mean over queries, and `p` of a t-test that this mean equals the paper's
    number: the variance of the paper's number is not known.
    """
    return [_compared(number, run, splits, others) for run in reported.runs for number in run.numbers]


def _compared(
    theirs: ReportedNumber,
    run: ReportedRun,
    splits: Sequence[SplitMeasurements],
    others: Mapping[str, Sequence[SplitMeasurements]],
) -> dict[str, Any]:
    row: dict[str, Any] = {"run": theirs.run, "metric": theirs.key, "theirs": theirs.value,
                           "rows": [str(name) for name in run.rows], "ours": None,
                           "difference": None, "low": None, "high": None, "p": None}  # fmt: skip
    if theirs.num_collections is not None:
        complete = len(others) == theirs.num_collections
        row["ours"] = mean_over(theirs.run, theirs.metric, others) if complete else None
    elif split := next((split for split in splits if theirs.split in (None, split.split)), None):
        row["ours"] = split.value(theirs.run, theirs.metric)
        row |= _tested(split, theirs) if row["ours"] is not None else {}
    if row["ours"] is not None:
        row["difference"] = row["ours"] - theirs.value
    return row


def mean_over(run: str, metric: str, others: Mapping[str, Sequence[SplitMeasurements]]) -> float | None:
    """Return the mean over collections, where those of one name count once; None where one was not measured."""
    groups = [[other.value(run, metric) for other in group] for group in others.values()]
    values = [[value for value in group if value is not None] for group in groups]
    if not values or any(len(known) < len(group) or not known for known, group in zip(values, groups, strict=True)):
        return None
    return fmean(fmean(group) for group in values)


def _tested(split: SplitMeasurements, theirs: ReportedNumber) -> dict[str, float]:
    """Return our interval, and the p of Student's one-sample t-test that our mean is the paper's number."""
    from scipy.stats import ttest_1samp

    name = theirs.metric.lower()
    span = next(row for row in split.intervals if (row["run"], row["metric"].lower()) == (theirs.run, name))
    chosen = pc.and_(pc.equal(split.by_query["run"], theirs.run), pc.equal(split.by_query["metric"], span["metric"]))
    values = split.by_query.filter(chosen)["value"].to_numpy()
    if np.ptp(values) == 0:  # without variance there is no test: the mean is the number, or it is not
        return {"low": span["low"], "high": span["high"], "p": float(values[0] == theirs.value)}
    return {"low": span["low"], "high": span["high"], "p": float(ttest_1samp(values, theirs.value).pvalue)}


def systems_by_split(reported: Reported, metric: str, splits: Sequence[SplitMeasurements]) -> list[dict[str, Any]]:
    """Return for each split of the paper its systems by `metric`, and our runs below the rows that they reproduce.

    On a split without the headline's metric, the split's first metric that the paper prints takes its place.
    """
    tables = []
    for split in splits if reported.paper else []:
        collection = paper_collection(split.dataset, split.split)
        theirs = paper_rows(str(reported.paper), reported.tables, collection)
        measured = dict.fromkeys(row["metric"] for row in split.rows)
        metrics = [name for name in measured if any(name in row.values for row in theirs)]
        if metrics:
            first = metric if metric in metrics else metrics[0]
            tables.append({
                "paper": reported.paper, "tables": list(dict.fromkeys(row.name.table for row in theirs)),
                "dataset": split.dataset, "split": split.split, "collection": collection, "metric": first,
                "metrics": metrics, "lines": _lines(reported, split, theirs, first),
            })  # fmt: skip
    return tables


def systems_on_other_collections(
    reported: Reported, others: Mapping[str, Sequence[SplitMeasurements]]
) -> list[dict[str, Any]]:
    """Return the paper's systems on other collections, by the names that these have here."""
    if reported.paper is None or not others:
        return []
    metric = next(iter(others.values()))[0].rows[0]["metric"]
    return [
        {"name": row.name.label, "table": row.name.table, "values": dict(row.values)}
        for row in beir_rows(reported.paper, reported.tables, list(others), metric)
    ]


def _lines(
    reported: Reported, split: SplitMeasurements, theirs: Sequence[PaperRow], metric: str
) -> list[dict[str, Any]]:
    """Return the paper's systems by the metric, rising, each with our runs that reproduce it below it.

    The rows that a run names are one system and one line. Where none of them has the metric, the run is placed by its
    own value.
    """
    printed = [row for row in theirs if metric in row.values]
    first_row = _first_rows(reported, [row.name for row in printed])
    lines: dict[RowName, dict[str, Any]] = {}
    for row in printed:
        line = lines.setdefault(first_row.get(row.name, row.name), {
            "name": row.name.label, "table": row.name.table, "ours": False, "values": {},
        })  # fmt: skip
        if row.name.table not in line["table"].split(", "):
            line["table"] += f", {row.name.table}"
        line["values"] = {**row.values, **line["values"]}
    groups: dict[RowName, list[dict[str, Any]]] = {name: [line] for name, line in lines.items()}
    without_row = []
    for run in reported.runs:
        our_line = _our_line(run.name, split, metric)
        if run.rows and our_line:
            row_name = next((first_row[name] for name in run.rows if name in first_row), None)
            if row_name is None:
                without_row.append([our_line])
            else:
                groups[row_name].append(our_line)
    ordered = sorted([*groups.values(), *without_row], key=lambda group: group[0]["values"][metric])
    return [line for group in ordered for line in group]


def _first_rows(reported: Reported, printed: Sequence[RowName]) -> dict[RowName, RowName]:
    """Return for each row that a run names the first row of the same system, among the rows printed."""
    first_row: dict[RowName, RowName] = {}
    for run in reported.runs:
        names = [name for name in run.rows if name in printed]
        first = next((first_row[name] for name in names if name in first_row), names[0] if names else None)
        if first is not None:
            first_row |= dict.fromkeys(names, first)
    return first_row


def _our_line(run: str, split: SplitMeasurements, metric: str) -> dict[str, Any] | None:
    """Return a run's measurements on the split; None where the metric was not measured."""
    values = {row["metric"]: row["value"] for row in split.rows if row["run"] == run}
    if metric not in values:
        return None
    span = next((row for row in split.intervals if (row["run"], row["metric"]) == (run, metric)), None)
    return {"name": run, "table": None, "ours": True, "values": values,
            "low": span and span["low"], "high": span and span["high"]}  # fmt: skip
