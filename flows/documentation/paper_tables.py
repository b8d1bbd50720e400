"""The papers' tables on the pages of the papers, in place of lines such as `<!-- tables of CAME -->`.

`<!-- claims of CAME -->` stands for the paper's claims in the study: the printed difference next to the measured one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

from flows.documentation.markdown import table
from flows.documentation.paper_coverage import tables_of
from flows.recipe.shipped import PROJECT
from flows.study.claims import load_study
from flows.study.judge import judge_claims
from flows.study.write_docs import RESULTS
from storage.results.paper_results import PAPERS
from tasks.report.page.study_markdown import Claimed, claim_lines

TABLES = re.compile(r"^<!-- tables of (.+) -->$", re.MULTILINE)
COSTS = re.compile(r"^<!-- costs of (.+) -->$", re.MULTILINE)
CLAIMS = re.compile(r"^<!-- claims of (.+) -->$", re.MULTILINE)
COST_FILE = PROJECT / "benchmarks" / "results" / "recipe_costs.json"


def insert_tables(markdown: str) -> str:
    """Return a page's text with the tables, claims and costs that its comments name.

    Raises `KeyError` where a comment names a paper or recipe that does not exist.
    """
    text = TABLES.sub(lambda line: tables_of(_known(line[1])), markdown)
    text = CLAIMS.sub(lambda line: claims_table(_known(line[1]), study_claims()), text)
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


def _costs(recipes: list[str]) -> str:
    """Return the counted FLOPs of recipes by part, with every text at its full length."""
    counted = json.loads(COST_FILE.read_text(encoding="utf-8"))
    parts = list(dict.fromkeys(part for recipe in recipes for part in counted[recipe]["flops"]))
    rows = [(f"`{recipe}`", *(f"{counted[recipe]['flops'].get(part, 0):.2g}" for part in parts)) for recipe in recipes]
    return table(("recipe", *(f"{part}, FLOPs" for part in parts)), rows)
