"""Write `docs/coverage.md`, the runs that reproduce each row of the papers' tables, with `python -m`.

The page follows from `storage/reported_results.csv`, from `reported` in the shipped recipes, and from three files in
`docs/coverage/`: who produced a row's numbers and the words of the paper that say so, why a number is not reproduced,
and what is here for each figure. In these files `*` stands for any text, and the first line that fits counts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from typing import Any

from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import PROJECT, shipped_recipes
from flows.recipe.suite_schema import load_suite
from storage.errors import UserError
from storage.files import write_atomically
from storage.results.paper_results import (
    BEIR_AVERAGE,
    PAPERS,
    PrintedNumber,
    RowName,
    paper_collection,
    printed_numbers,
    same_collection,
)
from storage.results.reported import parse_reported

PAGE = PROJECT / "docs" / "coverage.md"
SOURCES = PROJECT / "docs" / "coverage"
SHOWN_NUMBERS = 8  # a row of BEIR's collections is shown by its average only
INTRODUCTION = """# Coverage

Each row of the papers' tables as printed, who produced its numbers, and the recipe and run that reproduce it. The words
in quotation marks are the paper's own.

- *trained*: the paper's authors trained or ran the system themselves
- *copied*: they took the numbers from another paper
- *not stated*: the paper does not say which
- *annotated*: labels by persons

Written by `make coverage` from `storage/reported_results.csv`, the recipes' `reported`, and `docs/coverage/`.
"""


@dataclass(frozen=True)
class ReproducingRun:
    """A run of a shipped recipe that names a row."""

    recipe: str
    run: str
    measures: frozenset[tuple[str, str]]
    """The papers' collections and the metrics that the recipe measures for this run."""

    def reproduces(self, number: PrintedNumber) -> bool:
        """Return whether the run's recipe measures the number."""
        return any(
            same_collection(number.dataset, collection) and metric == number.metric
            for collection, metric in self.measures
        )


def coverage_page() -> str:
    """Return the content of `docs/coverage.md`."""
    parts = [INTRODUCTION, _summary()]
    for citation, paper in PAPERS.items():
        parts += [f"## {paper} ({citation})\n", tables_of(paper)]
    return "\n".join(parts)


def tables_of(paper: str, below: Callable[[Sequence[PrintedNumber]], str] = lambda numbers: "") -> str:
    """Return a paper's tables and figures, row by row, with the runs that reproduce them.

    `below` returns what follows a table with these numbers.
    """
    numbers = [number for number in printed_numbers() if number.row.paper == paper]
    tables = dict.fromkeys(number.row.table for number in numbers)
    parts: list[str] = []
    for table in tables:
        of_table = [number for number in numbers if number.row.table == table]
        parts += filter(None, [_table(table, of_table), below(of_table)])
    figures = [line for line in _lines("figures") if line["paper"] == paper]
    parts.append("| figure | shows | here |\n|---|---|---|")
    parts.append("\n".join(f"| {line['figure']} | {line['content']} | {line['here']} |" for line in figures) + "\n")
    return "\n".join(parts)


def origin(row: RowName) -> tuple[str, str]:
    """Return who produced a row's numbers, and the words of the paper that say so."""
    for line in _lines("origins"):
        if _fits(line, row):
            return line["origin"], line["words"]
    raise UserError(f"docs/coverage/origins.csv: no line fits {row.paper}, {row}")


def reason(number: PrintedNumber) -> str | None:
    """Return why no recipe reproduces a number, if a line says so."""
    for line in _lines("reasons"):
        if _fits(line, number.row) and fnmatchcase(number.dataset, line["dataset"]):
            return line["reason"]
    return None


def runs_that_reproduce(number: PrintedNumber) -> list[ReproducingRun]:
    """Return the runs of shipped recipes that name the number's row and measure the number."""
    return [run for run in _runs_by_row().get(number.row, []) if run.reproduces(number)]


def reproducing_recipes() -> list[str]:
    """Return the shipped recipes that name a row of a paper."""
    return list(dict.fromkeys(run.recipe for runs in _runs_by_row().values() for run in runs))


@cache
def _runs_by_row() -> Mapping[RowName, Sequence[ReproducingRun]]:
    runs: dict[RowName, list[ReproducingRun]] = {}
    for name in shipped_recipes():
        recipe, _ = load_recipe(name)
        for run in parse_reported(recipe.reported, recipe.headline.run).runs:
            for row in run.rows:
                runs.setdefault(row, []).append(ReproducingRun(name, run.name, _measured(recipe, run.name)))
    return runs


def _measured(recipe: Recipe[Any], run: str) -> frozenset[tuple[str, str]]:
    dataset = recipe.dataset
    collections = [(paper_collection(dataset.reader, split), recipe.evaluate.metrics) for split in dataset.eval_splits]
    if recipe.transfer and run in recipe.transfer.rounds:
        suite, _ = load_suite(recipe.transfer.suite)
        names = dict.fromkeys(collection.column for collection in suite.collections)
        collections += [(f"beir/{name}", suite.evaluate.metrics) for name in names]
        collections.append((BEIR_AVERAGE, suite.evaluate.metrics))
    return frozenset((collection, metric) for collection, metrics in collections for metric in metrics)


def _summary() -> str:
    lines = ["| paper | numbers | of rows trained by the authors | with a recipe |", "|---|---:|---:|---:|"]
    for paper in PAPERS.values():
        numbers = [number for number in printed_numbers() if number.row.paper == paper]
        trained = [number for number in numbers if origin(number.row)[0] == "trained"]
        covered = [number for number in trained if runs_that_reproduce(number)]
        lines.append(f"| {paper} | {len(numbers)} | {len(trained)} | {len(covered)} |")
    return "\n".join(lines) + "\n"


def _table(table: str, numbers: Sequence[PrintedNumber]) -> str:
    lines = [f"### {table}\n", "| row | printed | origin | recipe: run, or why none |", "|---|---|---|---|"]
    for row in dict.fromkeys(number.row for number in numbers):
        of_row = [number for number in numbers if number.row == row]
        source, words = origin(row)
        quotation = f": “{words}”" if words else ""
        lines.append(f"| {row.label} | {_printed(of_row)} | {source}{quotation} | {_covering(of_row, source)} |")
    return "\n".join(lines) + "\n"


def _printed(numbers: Sequence[PrintedNumber]) -> str:
    """Return the numbers as printed, by collection; of a row with many collections the average only."""
    if len(numbers) > SHOWN_NUMBERS:
        average = next(number for number in numbers if number.dataset == BEIR_AVERAGE)
        return f"{average.printed_metric} {average.printed} on average over {len(numbers) - 1} collections"
    values: dict[str, list[str]] = {}
    for number in numbers:
        metric = number.printed_metric.replace("|", "\\|")
        values.setdefault(number.dataset, []).append(f"{metric} {number.printed}")
    return "; ".join(f"{dataset}: {', '.join(texts)}" for dataset, texts in values.items())


def _covering(numbers: Sequence[PrintedNumber], source: str) -> str:
    """Return the runs that reproduce numbers of a row, and the reasons for those that none reproduces."""
    runs = dict.fromkeys((run.recipe, run.run) for number in numbers for run in runs_that_reproduce(number))
    by_recipe = [
        f"`{recipe}`: {', '.join(run for _, run in names)}" for recipe, names in groupby(runs, lambda run: run[0])
    ]
    missing = [number for number in numbers if not runs_that_reproduce(number)]
    otherwise = "another paper's system" if source in ("copied", "not stated") else ""
    reasons: dict[str, list[str]] = {}
    for number in missing:
        if text := reason(number) or otherwise:
            reasons.setdefault(text, []).append(number.dataset)
    partial = len(missing) < len(numbers) or len(reasons) > 1
    notes = [f"{', '.join(dict.fromkeys(datasets))}: {text}" if partial else text for text, datasets in reasons.items()]
    return "; ".join(by_recipe + notes)


def _fits(line: Mapping[str, str], row: RowName) -> bool:
    fields = (("paper", row.paper), ("table", row.table), ("system", row.system), ("variant", row.variant))
    return all(fnmatchcase(text, line[name]) for name, text in fields)


@cache
def _lines(name: str) -> list[dict[str, str]]:
    with (SOURCES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    write_atomically(PAGE, coverage_page())
    print(PAGE.relative_to(PROJECT))
