"""Keep the results of a complete matrix for docs/results.md: `python -m flows.matrix.kept_results FOLDER...`.

A folder is that of the matrix in its store, `reports/matrix/NAME`. `results/matrices/NAME.json` keeps the tests and
means of the headline's metric, the probes of the pre-trainings, and the keys and CPU times of all runs. `make results`
then writes the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.files import write_atomically
from tasks.report.page.costs import kept_costs
from tasks.report.page.training_curves import PROBE_CURVE

FOLDER = PROJECT / "results" / "matrices"

Content = dict[str, Any]


def kept(folder: Path) -> Content:
    """Return what is kept of a matrix. Raises UserError where one of its runs is not complete."""
    matrix: Content = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
    missing = [cell for cell in matrix["cells"] if cell["state"] != "complete"]
    if missing:
        raise UserError(f"{folder}: {len(missing)} runs are not complete; run again: {matrix['resume']}")
    reports = [
        json.loads((folder / cell["page"]).with_suffix(".json").read_text(encoding="utf-8")) for cell in matrix["cells"]
    ]
    recipe, rows = reports[0]["recipe"], reports[0]["rows"]
    names = ("name", "command", "seeds", "variants", "metric", "mains")
    return {
        **{name: matrix[name] for name in names}, "title": recipe["title"], "dataset": recipe["dataset"],
        "split": rows[0]["split"], "queries": max(row["queries"] for row in rows),
        **{part: [row for row in matrix[part] if row["metric"] == matrix["metric"]]
           for part in ("results", "comparisons", "within")},
        "runs": [_run(cell, report) for cell, report in zip(matrix["cells"], reports, strict=True)],
    }  # fmt: skip


def _run(cell: Mapping[str, Any], report: Mapping[str, Any]) -> Content:
    return {
        "variant": cell["variant"], "seed": cell["seed"], "report": cell["report"],
        "metrics": report["inputs"]["metrics"],
        **kept_costs(report),
        "probe": dict(_probes(report["curves"])),
    }  # fmt: skip


def _probes(curves: Mapping[str, Mapping[str, Sequence[Any]]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield each curve of a retrieval probe by its metric."""
    for name, lines in curves.items():
        if name.endswith(PROBE_CURVE):
            yield from lines.items()


def main(folders: Sequence[str]) -> None:
    """Write the kept results of the matrices."""
    for folder in map(Path, folders):
        content = kept(folder)
        write_atomically(FOLDER / f"{content['name']}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(FOLDER / f"{content['name']}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
