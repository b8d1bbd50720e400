"""The papers' tables on the pages of the papers, in place of lines such as `<!-- tables of CAME -->`.

Below each table are the commands that reproduce its rows, with their costs.

`<!-- claims of CAME -->` stands for the paper's claims in the study: the printed difference next to the measured one.
`<!-- decisions 36, 37 -->` stands for these rows of the table of decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from flows.documentation.markdown import table
from flows.documentation.paper_coverage import runs_that_reproduce, tables_of
from flows.recipe.load import load_recipe
from flows.recipe.shipped import PROJECT
from flows.study.claims import RESULTS, load_study
from flows.study.judge import judge_claims
from storage.results.paper_results import PAPERS, PrintedNumber
from tasks.report.page.study_markdown import Claimed, claim_lines

TABLES = re.compile(r"^<!-- tables of (.+) -->$", re.MULTILINE)
COSTS = re.compile(r"^<!-- costs of (.+) -->$", re.MULTILINE)
CLAIMS = re.compile(r"^<!-- claims of (.+) -->$", re.MULTILINE)
DECISIONS = re.compile(r"^<!-- decisions ([\d, ]+) -->$", re.MULTILINE)
DECISIONS_PAGE = PROJECT / "docs" / "fidelity.md"
HOURS_FILE = PROJECT / "benchmarks" / "results" / "recipe_hours.json"


def insert_tables(markdown: str) -> str:
    """Return a page's text with the tables, claims, costs and decisions that its comments name.

    Raises `KeyError` where a comment names a paper, recipe or decision that does not exist.
    """
    text = TABLES.sub(lambda line: tables_of(_known(line[1]), commands), markdown)
    text = CLAIMS.sub(lambda line: claims_table(_known(line[1]), study_claims()), text)
    text = DECISIONS.sub(lambda line: _decisions(line[1].split(", ")), text)
    return COSTS.sub(lambda line: _costs(line[1].split(", ")), text)


def _known(paper: str) -> str:
    if paper not in PAPERS.values():
        raise KeyError(f"{paper}: expected one of {', '.join(PAPERS.values())}")
    return paper


@cache
def study_claims() -> Sequence[Claimed]:
    """Return the claims of the study with the results that the repository has."""
    return judge_claims(load_study(), RESULTS)


def claims_table(paper: str, claims: Sequence[Claimed]) -> str:
    """Return a paper's claims with the difference that it prints, ours with its 95 % interval, and the verdict."""
    rows = [
        (f"{line['statement']} `{line['arm']}` − `{line['than']}`", f"{line['source'].removeprefix(f'{paper}, ')}",
         line["printed"], line["ours"], line["words"])
        for line in claim_lines([claim for claim in claims if claim.paper == paper])
    ]  # fmt: skip
    return table(("claim", "in the paper", "printed difference", "ours", "verdict"), rows)


def commands(numbers: Sequence[PrintedNumber]) -> str:
    """Return the commands that reproduce numbers of a table, with their rows, collections and estimated hours."""
    rows_of: dict[str, list[str]] = {}
    for number in numbers:
        for run in runs_that_reproduce(number):
            labels = rows_of.setdefault(run.recipe, [])
            if number.row.label not in labels:
                labels.append(number.row.label)
    rows = [
        (f"`pretrieve reproduce {recipe}`", "; ".join(labels), _collections(recipe),
         _in_words(sum(_estimated()["hours"][recipe].values())))
        for recipe, labels in rows_of.items()
    ]  # fmt: skip
    return table(("command", "rows", "collections", f"hours on one {_estimated()['gpu']}"), rows) if rows else ""


def _collections(name: str) -> str:
    """Return the collections that a recipe reads, by their dataset loaders."""
    recipe, _ = load_recipe(name)
    pretrained = recipe.corpora.pretrain_from
    suite = f"suite {recipe.transfer.suite}" if recipe.transfer else None
    return ", ".join(
        dict.fromkeys(filter(None, [pretrained.reader if pretrained else None, recipe.dataset.reader, suite]))
    )


@cache
def _estimated() -> dict[str, Any]:
    estimated: dict[str, Any] = json.loads(HOURS_FILE.read_text(encoding="utf-8"))
    return estimated


def _decisions(numbers: Sequence[str]) -> str:
    """Return the rows of the table of decisions that have these numbers, below the table's header."""
    text = DECISIONS_PAGE.read_text(encoding="utf-8")
    rows = {row[1]: row[0] for row in re.finditer(r"^\| (\d+) \|.*$", text, re.MULTILINE)}
    (header,) = re.findall(r"^\| # \|.*\n\|[-|]+\|$", text, re.MULTILINE)
    part = "\n".join([header, *(rows[number] for number in numbers)])
    return part.replace("](#", f"](../{DECISIONS_PAGE.name}#")


def _costs(recipes: list[str]) -> str:
    """Return the estimated hours of recipes by part, with a sentence about them."""
    hours = _estimated()["hours"]
    words = (
        f"Estimated hours on one {_estimated()['gpu']} at the paper's size "
        "([how they are estimated](../scale.md#what-a-reproduction-of-each-paper-costs)):"
    )
    parts = list(dict.fromkeys(part for recipe in recipes for part in hours[recipe]))
    rows = [(f"`{recipe}`", *(_in_words(hours[recipe].get(part)) for part in parts)) for recipe in recipes]
    return f"{words}\n\n{table(('recipe', *parts), rows)}"


def _in_words(hours: float | None) -> str:
    """Return hours with two digits, or all before the decimal point; a dash for none."""
    if hours is None:
        return "–"
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
