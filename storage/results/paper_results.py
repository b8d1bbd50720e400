"""The papers' results: `reported_results.csv`, one number a row, in the metrics and collections of this pipeline.

Numbers are fractions here, with the printed precision. `R@k` has two meanings: the papers of CoT-MAE's authors count
the queries with a relevant passage in the top k (`success@k`), the others the share of relevant passages in the top k
(`recall@k`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "reported_results.csv"
PAPERS = {
    "Wu et al. 2022": "Query-as-context",
    "Ma et al. 2023": "CoT-MoTE",
    "Ma et al. 2022": "CPDAE",
    "Cai et al. 2023": "CAME",
    "Xiao and Liu 2022": "DupMAE (RetroMAE v2)",
}
"""The papers: the beginning of recipes' `reported.source` to the name in the file."""
SUCCESS = ("Query-as-context", "CoT-MoTE")
"""Papers whose R@k is success@k."""
COLLECTIONS = {
    ("msmarco", "dev"): "msmarco-passage/dev",
    ("msmarco", "dl19"): "trec-dl-2019/passage",
    ("msmarco", "dl20"): "trec-dl-2020/passage",
    ("msmarco_documents", "dev"): "msmarco-doc/dev",
    ("msmarco_documents", "dl19"): "trec-dl-2019/doc",
    ("natural_questions", "test"): "nq/test",
}
"""The papers' name of a split, by data set and split."""
SPELLINGS = {"webis-touche2020": "touche-2020", "touché-2020": "touche-2020", "fiqa-2018": "fiqa",
             "dbpedia-entity": "dbpedia", "signal-1m(rt)": "signal-1m"}  # fmt: skip
"""BEIR's collections with several spellings in the papers."""


@dataclass(frozen=True)
class PaperRow:
    """The numbers of one system in a table of a paper."""

    table: str
    system: str
    variant: str
    values: Mapping[str, float]
    """By metric; divided by 100 where the paper prints per cent."""

    @property
    def name(self) -> str:
        """System and variant."""
        return f"{self.system}, {self.variant}" if self.variant else self.system


@dataclass(frozen=True)
class Citation:
    """A recipe's `reported.source`."""

    paper: str
    """Its name in the file."""
    tables: Sequence[str]
    """As in `Table 1`."""


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper in a recipe's `reported`."""

    run: str
    words: str
    """The metric in the recipe's words."""
    metric: str
    split: str | None
    """A split of the recipe's collection; None for the headline's."""
    sets: int | None
    """The number of other collections that the number is a mean over; None for a single collection."""
    value: float


def paper_numbers(reported: Mapping[str, Any], main: str) -> list[PaperNumber]:
    """Return the numbers of a recipe's `reported`: by metric for the main run, or by run and metric."""
    numbers = []
    for name, given in reported.items():
        for words, number in given.items() if isinstance(given, Mapping) else [(name, given)]:
            if isinstance(number, int | float):
                run = name if isinstance(given, Mapping) else main
                numbers.append(PaperNumber(run, words, *_parse_metric(words), float(number)))
    return numbers


def _parse_metric(words: str) -> tuple[str, str | None, int | None]:
    """Return metric, split and number of collections."""
    if match := re.fullmatch(r"(.+) on (\w+)", words):
        return match[1], match[2], None
    if match := re.fullmatch(r"mean (.+) of (\d+) sets", words):
        return match[1], None, int(match[2])
    return words, None, None


def parse_citation(source: str) -> Citation | None:
    """Return the paper and tables of a source like `Wu et al. 2022, tables 1 and 2`; None for another paper."""
    name, _, rest = source.partition(",")
    if name not in PAPERS:
        return None
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", rest.partition(";")[0].partition("figure")[0]):
        numbers += range(int(first), int(last or first) + 1)
    return Citation(PAPERS[name], [f"Table {number}" for number in numbers])


def paper_rows(cited: Citation, collection: str) -> list[PaperRow]:
    """Return the cited tables' rows for a collection, in their order; a system in several tables has several rows."""
    values_by_system: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in _rows():
        if row["paper"] == cited.paper and row["table"] in cited.tables and same_collection(row["dataset"], collection):
            key = row["table"], row["system"], row["variant"]
            values_by_system.setdefault(key, {})[metric_name(row["paper"], row["metric"])] = as_fraction(row)
    return [PaperRow(*key, values) for key, values in values_by_system.items()]


def beir_rows(cited: Citation, names: Sequence[str], metric: str) -> list[PaperRow]:
    """Return the cited tables' rows for BEIR's collections in one metric, with values by collection name.

    A row has `average` only where the paper's average is over exactly these collections.
    """
    values_by_system: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in _rows():
        known = (
            row["paper"] == cited.paper
            and row["table"] in cited.tables
            and metric_name(cited.paper, row["metric"]) == metric
        )
        if known and row["dataset"].startswith("beir/"):
            key = row["table"], row["system"], row["variant"]
            name = next((name for name in names if same_collection(row["dataset"], f"beir/{name}")), row["dataset"])
            values_by_system.setdefault(key, {})["average" if name == "beir/Average" else name] = as_fraction(row)
    rows = []
    for key, values in values_by_system.items():
        complete = values.keys() - {"average"} == set(names)
        shown = {name: number for name, number in values.items() if name in names or (complete and name == "average")}
        if shown:
            rows.append(PaperRow(*key, shown))
    return rows


def matching_row(among: Sequence[PaperRow], printed: Mapping[str, float]) -> PaperRow | None:
    """Return the row that equals these values in all common metrics and has the most of them; None without one."""

    def shared(row: PaperRow) -> list[str]:
        return [name for name in printed if name in row.values]

    equal = [row for row in among if all(row.values[name] == printed[name] for name in shared(row))]
    best = max(equal, key=lambda row: len(shared(row)), default=None)
    return best if best is not None and shared(best) else None


def metric_name(paper: str, name: str) -> str:
    """Return this pipeline's name of a paper's metric."""
    name = name.replace("@1k", "@1000")
    if match := re.fullmatch(r"Top-(\d+) accuracy", name):
        return f"answer@{match[1]}"
    if name.startswith("R@"):
        return name.replace("R@", "success@" if paper in SUCCESS else "recall@")
    return name


def as_fraction(row: Mapping[str, str]) -> float:
    """Return a row's number, per cent as a fraction. It is rounded: 39.4 / 100 is not 0.394 in binary."""
    number = float(row["value"])
    return round(number / 100, 6) if row["scale"] == "percent" else number


def same_collection(theirs: str, ours: str) -> bool:
    """Return whether two names are spellings of one collection."""
    return _normalised(theirs) == _normalised(ours)


def paper_collection(dataset: str, split: str) -> str:
    """Return the papers' name of a split, or beir/DATASET for a collection that is in no paper."""
    return COLLECTIONS.get((dataset, split), dataset if dataset.startswith("beir/") else f"beir/{dataset}")


def _normalised(name: str) -> str:
    group, _, rest = name.lower().partition("/")
    return f"{group}/{SPELLINGS.get(rest, rest)}"


@cache
def _rows() -> list[dict[str, Any]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
