"""Keep the results of a recipe's runs with several seeds.

`python -m flows.seed_results REPORT...` writes `results/seeds/RECIPE.json` from published `report.json` files that
differ in their seeds only. `make results` writes the documentation of the quickstart's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.files import write_atomically
from storage.settings import without_seeds
from tasks.report.page.costs import kept_costs
from tasks.report.page.statistics import headline_rows

FOLDER = PROJECT / "results" / "seeds"

Content = dict[str, Any]


def kept(reports: Sequence[Content]) -> Content:
    """Return what is kept of the reports of one recipe, in the order of their seeds.

    Raises UserError if the reports are not of one recipe with different seeds.
    """
    recipes = [yaml.safe_load(report["recipe"]["text"]) for report in reports]
    seeds = [recipe.pop("seed") for recipe in recipes]
    if any(without_seeds(recipe) != without_seeds(recipes[0]) for recipe in recipes) or len({*seeds}) < len(seeds):
        raise UserError("reports: expected those of one recipe with different seeds; their recipes differ in more")
    first, metric = reports[0], reports[0]["headline"]["metric"]
    rows = headline_rows(first["rows"])
    return {
        "recipe": first["recipe"]["recipe"], "title": first["recipe"]["title"], "dataset": first["recipe"]["dataset"],
        "metric": metric, "split": rows[0]["split"], "queries": max(row["queries"] for row in rows),
        "not_claimed": first["claims"]["not_made"],
        "runs": [_run(seed, report, metric) for seed, report in sorted(zip(seeds, reports, strict=True), key=_seed)],
    }  # fmt: skip


def _seed(numbered: tuple[int, Content]) -> int:
    return numbered[0]


def _run(seed: int, report: Content, metric: str) -> Content:
    of_metric = [row for row in report["comparisons"] if row["metric"] == metric]
    return {
        "seed": seed, "report": report["inputs"]["report"], "metrics": report["inputs"]["metrics"],
        "values": {row["run"]: row["value"] for row in headline_rows(report["rows"]) if row["metric"] == metric},
        "comparisons": of_metric, "claims": report["claims"]["made"],
        **kept_costs(report),
    }  # fmt: skip


if __name__ == "__main__":
    content = kept([json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]])
    write_atomically(FOLDER / f"{content['recipe']}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
