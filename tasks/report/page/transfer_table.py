"""Runs by other collections than the one they were trained for, as BEIR's table has them: the last column is the mean.

Collections of one group are one column, their unweighted mean, as CQADupStack's twelve forums are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tasks.report.page.chart_geometry import axis, position

Column = Mapping[str, float | None]


def elsewhere(measured: Sequence[Mapping[str, Any]], groups: Mapping[str, str], main: str) -> dict[str, Any] | None:
    """Return the table and its figure: the first metric of each collection, by run; None without collections.

    `main` is the run that is looked at: where it was not measured, the last one that was.
    """
    if not measured:
        return None
    metrics = dict.fromkeys(collection["rows"][0]["metric"] for collection in measured)
    runs = list(dict.fromkeys(row["run"] for collection in measured for row in collection["rows"]))
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
    """Return each run's value by collection or group; None if a member of a group has no value."""
    by_name: dict[str, list[dict[str, float]]] = {}
    for collection in measured:
        rows = [row for row in collection["rows"] if row["metric"] == collection["rows"][0]["metric"]]
        name = collection["rows"][0]["dataset"]
        by_name.setdefault(groups.get(name, name), []).append({row["run"]: row["value"] for row in rows})
    return {
        name: {run: mean([values.get(run) for values in members]) for run in runs} for name, members in by_name.items()
    }


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing: a mean over fewer collections cannot be compared."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _best(column: Column) -> float | None:
    return max((value for value in column.values() if value is not None), default=None)


def _dumbbell(name: str, column: Column, main: str, on: Mapping[str, Any]) -> dict[str, Any]:
    known = {run: value for run, value in column.items() if value is not None}
    positions = {run: position(value, on) for run, value in known.items()}
    low, high = min(positions.values(), default=0.0), max(positions.values(), default=0.0)
    ordered = sorted(known, key=lambda run: run == main)  # the main run's dot is drawn last, on top
    return {
        "name": name, "value": column[main], "left": low, "span": high - low,
        "dots": [{"run": run, "kind": "main" if run == main else "other", "place": positions[run], "value": known[run]}
                 for run in ordered],
    }  # fmt: skip
