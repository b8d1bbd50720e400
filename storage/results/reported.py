"""A recipe's `reported`: the numbers that a paper prints for the recipe's runs, and the rows that print them.

    reported:
      paper: Query-as-context                      # as in `reported_results.csv`
      source: Wu et al. 2022, tables 1 and 3       # in words, for captions
      retriever_1:
        row: {table: Table 1, system: CoT-MAE, variant: w/ query-as-context (50K) - retriever 1}
        MRR@10: 0.386                              # on the first of dataset.eval_splits
        nDCG@10 on dl19: 0.677                     # on another split
      retriever_2: {MRR@10: 0.4}                   # without a row: the user's own number

`row` may be a list where several tables print the same system. `variant` is left out where the row has none. A metric
outside a run is the user's own number for the headline's run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.errors import quoted, suggestion
from storage.results.paper_results import (
    BEIR_AVERAGE,
    PAPERS,
    RowName,
    num_beir_collections,
    paper_collection,
    row_names,
    row_values,
)

LARGEST = 1e15  # above it, and for NaN, a value is a slip: JSON has no infinite numbers


@dataclass(frozen=True)
class ReportedNumber:
    """A number in a recipe's `reported`."""

    run: str
    key: str
    """The metric as the recipe writes it, with the split or the mean."""
    metric: str
    split: str | None
    """A split of the recipe's collection; None for the headline's."""
    num_collections: int | None
    """The number of other collections that the number is a mean over; None for a single collection."""
    value: float


@dataclass(frozen=True)
class ReportedRun:
    """The reported numbers of one run in a recipe."""

    name: str
    rows: Sequence[RowName]
    """The rows that the run reproduces, all of one system; empty for the user's own numbers."""
    numbers: Sequence[ReportedNumber]


@dataclass(frozen=True)
class Reported:
    """A recipe's `reported`."""

    paper: str | None
    runs: Sequence[ReportedRun]

    @property
    def tables(self) -> list[str]:
        """The tables in which the runs have rows."""
        return list(dict.fromkeys(row.table for run in self.runs for row in run.rows))


def parse_reported(content: Mapping[str, Any], main: str) -> Reported:
    """Return the content of a recipe's `reported`, whose headline is of the run `main`.

    Raises ValueError for a paper or a row that does not exist.
    """
    paper = content.get("paper")
    if paper is not None and paper not in PAPERS.values():
        raise ValueError(f"reported.paper: expected one of {', '.join(PAPERS.values())}, found {quoted(paper)}")
    if "row" in content:
        raise ValueError("reported.row: expected the row below the name of a run")
    runs = [_parse_run(name, value, paper) for name, value in content.items() if isinstance(value, Mapping)]
    numbers = [_parse_number(main, str(key), value) for key, value in content.items() if _is_number(value)]
    return Reported(paper, [*runs, *([ReportedRun(main, [], numbers)] if numbers else [])])


def check_reported(reported: Reported, run_names: Sequence[str], dataset: str, splits: Sequence[str]) -> None:
    """Raise ValueError where a run with a row is not in the recipe, or a number is not what its rows print.

    Where the rows have none of the recipe's collections nothing is checked: a recipe may run on another collection.
    """
    collections = [*(paper_collection(dataset, split) for split in splits), BEIR_AVERAGE]
    for run in reported.runs:
        if run.rows and run.name not in run_names:
            raise ValueError(f"reported.{run.name}: no run of this recipe; {suggestion(run.name, run_names)}")
        if any(row_values(row, collection) for row in run.rows for collection in collections):
            for number in run.numbers:
                _check_number(number, run.rows, dataset, splits)


def _parse_run(name: str, content: Mapping[str, Any], paper: str | None) -> ReportedRun:
    given = content.get("row", [])
    for key, value in content.items():
        if key != "row" and (isinstance(value, Mapping | list) or ("row" in content and not _is_number(value))):
            raise ValueError(
                f"reported.{name}.{key}: expected a number (a paper's row is `row`), found {quoted(value)}"
            )
    if "row" in content and not given:
        raise ValueError(f"reported.{name}.row: expected table and system; leave `row` out for your own numbers")
    rows = [_parse_row(f"reported.{name}.row", row, paper) for row in (given if isinstance(given, list) else [given])]
    numbers = [_parse_number(name, str(key), value) for key, value in content.items() if _is_number(value)]
    return ReportedRun(name, rows, numbers)


def _parse_row(location: str, row: Any, paper: str | None) -> RowName:
    if paper is None:
        raise ValueError(f"{location}: expected reported.paper, one of {', '.join(PAPERS.values())}")
    keys = set(row) if isinstance(row, Mapping) else set()
    if not {"table", "system"} <= keys <= {"table", "system", "variant"}:
        raise ValueError(
            f"{location}: expected table and system, and variant where the row has one, found {quoted(row)}"
        )
    name = RowName(paper, str(row["table"]), str(row["system"]), str(row.get("variant", "")))
    known = row_names(paper)
    if name not in known:
        of_table = [str(other) for other in known if other.table == name.table] or [str(other) for other in known]
        raise ValueError(f"{location}: {paper} has no row {quoted(str(name))}; {suggestion(str(name), of_table)}")
    return name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse_number(run: str, key: str, value: float) -> ReportedNumber:
    if not abs(value) <= LARGEST:
        raise ValueError(f"reported.{run}.{key}: expected a number that a paper could print, found {quoted(value)}")
    if match := re.fullmatch(r"(.+) on (\w+)", key):
        return ReportedNumber(run, key, match[1], match[2], None, float(value))
    if match := re.fullmatch(r"mean (.+) of (\d+) sets", key):
        return ReportedNumber(run, key, match[1], None, int(match[2]), float(value))
    return ReportedNumber(run, key, key, None, None, float(value))


def _check_number(number: ReportedNumber, rows: Sequence[RowName], dataset: str, splits: Sequence[str]) -> None:
    location = f"reported.{number.run}.{number.key}"
    collection = BEIR_AVERAGE if number.num_collections else paper_collection(dataset, number.split or splits[0])
    values_by_row = {row: row_values(row, collection) for row in rows}
    printed = {row: values[number.metric] for row, values in values_by_row.items() if number.metric in values}
    if not printed:
        known = ", ".join(sorted({metric for values in values_by_row.values() for metric in values}))
        hint = f"; expected {known}" if known else ""
        raise ValueError(f"{location}: the row prints no {number.metric} on {collection}{hint}")
    for row, value in printed.items():
        if value != number.value:
            raise ValueError(f"{location}: {row} prints {value:g} on {collection}, found {number.value:g}")
        if number.num_collections and number.num_collections != num_beir_collections(row):
            raise ValueError(f"{location}: {row} prints a mean of {num_beir_collections(row)} collections")
