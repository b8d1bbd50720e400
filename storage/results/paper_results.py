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

FILE = Path(__file__).parent.parent / "reported_results.csv"
PAPERS = {
    "Wu et al. 2022": "Query-as-context",
    "Ma et al. 2023": "CoT-MoTE",
    "Ma et al. 2022": "CPDAE",
    "Cai et al. 2023": "CAME",
    "Xiao and Liu 2022": "DupMAE (RetroMAE v2)",
}
"""The papers' citations, as recipes spell them, to the names in the file."""
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
BEIR_AVERAGE = "beir/Average"
"""The papers' name of a mean over BEIR's collections."""
SPELLINGS = {"webis-touche2020": "touche-2020", "touché-2020": "touche-2020", "fiqa-2018": "fiqa",
             "dbpedia-entity": "dbpedia", "signal-1m(rt)": "signal-1m"}  # fmt: skip
"""BEIR's collections with several spellings in the papers."""


@dataclass(frozen=True)
class RowName:
    """The paper, table, system and variant of a row, as `reported_results.csv` spells them."""

    paper: str
    table: str
    system: str
    variant: str

    @property
    def label(self) -> str:
        """System and variant."""
        return f"{self.system}, {self.variant}" if self.variant else self.system

    def __str__(self) -> str:
        return f"{self.table}: {self.label}"


@dataclass(frozen=True)
class PaperRow:
    """The numbers of one row of a table on one collection, or in one metric on several collections."""

    name: RowName
    values: Mapping[str, float]
    """By metric or by collection; divided by 100 where the paper prints per cent."""


@dataclass(frozen=True)
class PrintedNumber:
    """One number of the file."""

    row: RowName
    dataset: str
    metric: str
    """In this pipeline's name."""
    value: float
    """A fraction, but for metrics that are none (a divergence)."""
    printed: str
    printed_metric: str


def row_names(paper: str) -> list[RowName]:
    """Return the rows of a paper's tables, in the order of the file."""
    return list(dict.fromkeys(number.row for number in printed_numbers() if number.row.paper == paper))


def row_values(name: RowName, collection: str) -> dict[str, float]:
    """Return what a row prints for a collection, by metric; empty where it prints nothing."""
    return {
        number.metric: number.value
        for number in _numbers_by_row().get(name, [])
        if same_collection(number.dataset, collection)
    }


def paper_rows(paper: str, tables: Sequence[str], collection: str) -> list[PaperRow]:
    """Return the tables' rows for a collection, in their order; a system in several tables has several rows."""
    rows = [PaperRow(name, row_values(name, collection)) for name in row_names(paper) if name.table in tables]
    return [row for row in rows if row.values]


def beir_rows(paper: str, tables: Sequence[str], names: Sequence[str], metric: str) -> list[PaperRow]:
    """Return the tables' rows for BEIR's collections in one metric, with values by collection name.

    A row has `average` only where the paper's average is over exactly these collections.
    """
    values_by_row: dict[RowName, dict[str, float]] = {}
    for number in printed_numbers():
        in_table = number.row.paper == paper and number.row.table in tables
        if in_table and number.metric == metric and number.dataset.startswith("beir/"):
            same = (name for name in names if same_collection(number.dataset, f"beir/{name}"))
            key = "average" if number.dataset == BEIR_AVERAGE else next(same, number.dataset)
            values_by_row.setdefault(number.row, {})[key] = number.value
    rows = []
    for row, values in values_by_row.items():
        complete = values.keys() - {"average"} == set(names)
        shown = {name: value for name, value in values.items() if name in names or (complete and name == "average")}
        if shown:
            rows.append(PaperRow(row, shown))
    return rows


def num_beir_collections(name: RowName) -> int:
    """Return the number of BEIR's collections for which a row prints a number."""
    datasets = {number.dataset for number in printed_numbers() if number.row == name}
    return len([dataset for dataset in datasets if dataset.startswith("beir/") and dataset != BEIR_AVERAGE])


def metric_name(paper: str, name: str) -> str:
    """Return this pipeline's name of a paper's metric."""
    name = name.replace("@1k", "@1000")
    if match := re.fullmatch(r"Top-(\d+) accuracy", name):
        return f"answer@{match[1]}"
    if name.startswith("R@"):
        return name.replace("R@", "success@" if paper in SUCCESS else "recall@")
    return name


def as_fraction(value: str, scale: str) -> float:
    """Return a printed number, per cent as a fraction. It is rounded: 39.4 / 100 is not 0.394 in binary."""
    return round(float(value) / 100, 6) if scale == "percent" else float(value)


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
def _numbers_by_row() -> dict[RowName, list[PrintedNumber]]:
    """Return the numbers of each row: a recipe's check asks for many rows of several thousand numbers."""
    by_row: dict[RowName, list[PrintedNumber]] = {}
    for number in printed_numbers():
        by_row.setdefault(number.row, []).append(number)
    return by_row


@cache
def printed_numbers() -> list[PrintedNumber]:
    """Return all numbers of the file, in its order."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [
            PrintedNumber(
                row=RowName(line["paper"], line["table"], line["system"], line["variant"]),
                dataset=line["dataset"],
                metric=metric_name(line["paper"], line["metric"]),
                value=as_fraction(line["value"], line["scale"]),
                printed=line["value"],
                printed_metric=line["metric"],
            )
            for line in csv.DictReader(file)
        ]
