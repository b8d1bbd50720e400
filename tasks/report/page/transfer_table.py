"""Runs by other collections than the one they were trained for, as BEIR's table has them: the last column is the mean.

Collections of one group are one column, their unweighted mean, as CQADupStack's twelve forums are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tasks.report.page.chart_geometry import axis, place

Column = Mapping[str, float | None]


def elsewhere(measured: Sequence[Mapping[str, Any]], groups: Mapping[str, str], main: str) -> dict[str, Any] | None:
    """The table and its picture: of each collection its first metric, the runs in their order; None without any.

    `main` is the run that is looked at: where it was not measured, the last one that was.
    """
    if not measured:
        return None
    metrics = dict.fromkeys(each["rows"][0]["metric"] for each in measured)
    runs = list(dict.fromkeys(row["run"] for each in measured for row in each["rows"]))
    main = main if main in runs else runs[-1]
    columns = by_collection(measured, groups, runs)
    averages = {run: mean([column[run] for column in columns.values()]) for run in runs}
    best = [_best(column) for column in [*columns.values(), averages]]
    lines = [
        {"run": run, "cells": [(column[run], column[run] is not None and column[run] == most)
                               for column, most in zip([*columns.values(), averages], best, strict=True)]}
        for run in runs
    ]  # fmt: skip
    on = axis(0.0, max(value for value in best if value is not None))
    return {"metric": " or ".join(metrics), "main": main, "names": list(columns), "lines": lines, "axis": on,
            "dumbbells": [_dumbbell(name, column, main, on) for name, column in columns.items()]}  # fmt: skip


def by_collection(
    measured: Sequence[Mapping[str, Any]], groups: Mapping[str, str], runs: Sequence[str]
) -> dict[str, Column]:
    """Each run's value by collection or group; None where one of a group is missing."""
    found: dict[str, list[dict[str, float]]] = {}
    for each in measured:
        rows = [row for row in each["rows"] if row["metric"] == each["rows"][0]["metric"]]
        name = each["rows"][0]["dataset"]
        found.setdefault(groups.get(name, name), []).append({row["run"]: row["value"] for row in rows})
    return {name: {run: mean([each.get(run) for each in of_it]) for run in runs} for name, of_it in found.items()}


def mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing: a mean over other collections is another number."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _best(column: Column) -> float | None:
    return max((value for value in column.values() if value is not None), default=None)


def _dumbbell(name: str, column: Column, main: str, on: Mapping[str, Any]) -> dict[str, Any]:
    known = {run: value for run, value in column.items() if value is not None}
    places = {run: place(value, on) for run, value in known.items()}
    low, high = min(places.values(), default=0.0), max(places.values(), default=0.0)
    ordered = sorted(known, key=lambda run: run == main)  # the main run's dot lies on top
    return {
        "name": name, "value": column[main], "left": low, "span": high - low,
        "dots": [{"run": run, "kind": "main" if run == main else "other", "place": places[run], "value": known[run]}
                 for run in ordered],
    }  # fmt: skip
