"""What the papers print: `reported_results.csv`, a row a number, in the metrics and collections of this pipeline.

Numbers are fractions here, and as exact as they are printed. `R@k` is a name for two things: the papers of CoT-MAE's
authors count the queries that have a relevant passage among the first k (`success@k`), the others the share of the
relevant passages that are there (`recall@k`).
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
"""The papers as recipes' `reported.source` begins, and as the file calls them."""
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
"""The papers' name of a collection's split."""
SPELLINGS = {"webis-touche2020": "touche-2020", "touché-2020": "touche-2020", "fiqa-2018": "fiqa",
             "dbpedia-entity": "dbpedia", "signal-1m(rt)": "signal-1m"}  # fmt: skip
"""BEIR's collections that the papers spell in several ways."""


@dataclass(frozen=True)
class Line:
    """What a table of a paper prints for one system."""

    table: str
    system: str
    variant: str
    values: Mapping[str, float]
    """By metric; as printed, divided by 100 where the paper prints per cent."""

    @property
    def name(self) -> str:
        """System and variant."""
        return f"{self.system}, {self.variant}" if self.variant else self.system


@dataclass(frozen=True)
class Cited:
    """A recipe's `reported.source`."""

    paper: str
    """As the file calls it."""
    tables: Sequence[str]
    """`Table 1`."""


@dataclass(frozen=True)
class Printed:
    """A number that a recipe says its paper prints."""

    run: str
    words: str
    """The metric in the recipe's words."""
    metric: str
    split: str | None
    """Of the recipe's collection; None for the one that the headline is about."""
    sets: int | None
    """A mean over so many other collections; None for a number of one."""
    value: float


def printed(reported: Mapping[str, Any], main: str) -> list[Printed]:
    """The numbers of a recipe's `reported`: by metric, then of its main run, or by run and metric."""
    found = []
    for name, given in reported.items():
        for words, number in given.items() if isinstance(given, Mapping) else [(name, given)]:
            if isinstance(number, int | float):
                run = name if isinstance(given, Mapping) else main
                found.append(Printed(run, words, *_meant(words), float(number)))
    return found


def _meant(words: str) -> tuple[str, str | None, int | None]:
    """Metric, split and number of collections."""
    if found := re.fullmatch(r"(.+) on (\w+)", words):
        return found[1], found[2], None
    if found := re.fullmatch(r"mean (.+) of (\d+) sets", words):
        return found[1], None, int(found[2])
    return words, None, None


def cited(source: str) -> Cited | None:
    """The paper and its tables that a source like `Wu et al. 2022, tables 1 and 2` names; None for another paper."""
    name, _, rest = source.partition(",")
    if name not in PAPERS:
        return None
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", rest.partition(";")[0].partition("figure")[0]):
        numbers += range(int(first), int(last or first) + 1)
    return Cited(PAPERS[name], [f"Table {number}" for number in numbers])


def lines(cited: Cited, collection: str) -> list[Line]:
    """What the tables print of a collection, in their order; a system of several tables has several lines."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in _rows():
        if row["paper"] == cited.paper and row["table"] in cited.tables and same(row["dataset"], collection):
            key = row["table"], row["system"], row["variant"]
            found.setdefault(key, {})[metric(row["paper"], row["metric"])] = value(row)
    return [Line(*key, values) for key, values in found.items()]


def elsewhere(cited: Cited, names: Sequence[str], of: str) -> list[Line]:
    """What the tables print by a metric of BEIR's collections of these names, a line's values being by name.

    A line has its `average` where the paper's is over these collections and no others.
    """
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in _rows():
        known = (
            row["paper"] == cited.paper and row["table"] in cited.tables and metric(cited.paper, row["metric"]) == of
        )
        if known and row["dataset"].startswith("beir/"):
            key = row["table"], row["system"], row["variant"]
            name = next((name for name in names if same(row["dataset"], f"beir/{name}")), row["dataset"])
            found.setdefault(key, {})["average" if name == "beir/Average" else name] = value(row)
    lines = []
    for key, values in found.items():
        whole = values.keys() - {"average"} == set(names)
        shown = {name: number for name, number in values.items() if name in names or (whole and name == "average")}
        if shown:
            lines.append(Line(*key, shown))
    return lines


def reproduced(among: Sequence[Line], printed: Mapping[str, float]) -> Line | None:
    """The line that prints these values: all that both have are equal, and of such lines the one with the most."""

    def shared(line: Line) -> list[str]:
        return [name for name in printed if name in line.values]

    equal = [line for line in among if all(line.values[name] == printed[name] for name in shared(line))]
    best = max(equal, key=lambda line: len(shared(line)), default=None)
    return best if best is not None and shared(best) else None


def metric(paper: str, name: str) -> str:
    """A paper's metric as this pipeline calls it."""
    name = name.replace("@1k", "@1000")
    if found := re.fullmatch(r"Top-(\d+) accuracy", name):
        return f"answer@{found[1]}"
    if name.startswith("R@"):
        return name.replace("R@", "success@" if paper in SUCCESS else "recall@")
    return name


def value(row: Mapping[str, str]) -> float:
    """A row's number as a fraction where it is one; rounded, for 0.394 is not 39.4 / 100 in binary."""
    number = float(row["value"])
    return round(number / 100, 6) if row["scale"] == "percent" else number


def same(theirs: str, ours: str) -> bool:
    """Whether two names are of one collection."""
    return _spelt(theirs) == _spelt(ours)


def collection(dataset: str, split: str) -> str:
    """The papers' name of what a run measured; of collections that they do not have, one that they do not use."""
    return COLLECTIONS.get((dataset, split), dataset if dataset.startswith("beir/") else f"beir/{dataset}")


def _spelt(name: str) -> str:
    group, _, rest = name.lower().partition("/")
    return f"{group}/{SPELLINGS.get(rest, rest)}"


@cache
def _rows() -> list[dict[str, Any]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
