"""Reports in Markdown: the page of all results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.report.page.costs import machines
from tasks.report.page.html import reported
from tasks.report.page.statistics import headline_rows, mark, marks, verdict
from tasks.runtime.formatting import duration, in_units

TEMPLATE = "results.md.j2"


def results_page(reports: Sequence[Path], study: str = "") -> str:
    """Return the page with a study and then all reports, in the order of their file names."""
    contents = [_content(path) for path in sorted(reports)]
    return _tidy(reported(TEMPLATE).render(reports=contents, study=study))


def _tidy(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _content(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    head, remark = content["headline"], path.with_suffix(".md")
    tests = [row for row in content["comparisons"] if row["metric"] == head["metric"]]
    return {
        **content["recipe"], **_measured(content, head["baseline"]), "file": path.name, "runs": list(content["runs"]),
        "descriptions": list(content["runs"].values()), "baseline": head["baseline"],
        "verdicts": [verdict(row) for row in tests],
        "beside": content.get("beside", []), "report": content["inputs"]["report"], "key": content["inputs"]["metrics"],
        "splits": [_measured(split, head["baseline"]) for split in content.get("splits", [])],
        "stages": len(content["stages"]), "duration": duration(sum(stage["seconds"] for stage in content["stages"])),
        "machine": _machine(content),
        "remark": remark.read_text(encoding="utf-8").strip() if remark.is_file() else None,
    }  # fmt: skip


def _measured(content: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    rows, marked = headline_rows(content["rows"]), marks(content["comparisons"], baseline)
    return {
        "split": rows[0]["split"], "queries": max(row["queries"] for row in rows),
        "runs": list(dict.fromkeys(row["run"] for row in rows)),
        "metrics": list(dict.fromkeys(row["metric"] for row in rows)),
        "cells": {(row["run"], row["metric"]): f"{row['value']:.3f}{mark(marked.get((row['run'], row['metric']), 0))}"
                  for row in rows},
    }  # fmt: skip


def _machine(content: Mapping[str, Any]) -> str:
    """Return the machines and the peak memory, if the report has them."""
    devices = machines(content.get("environments", []))
    costs = content.get("costs")
    memory = f", peak memory {in_units(costs['peak_memory_mib'] * 2**20)}" if costs else ""
    return f" on {' and '.join(dict.fromkeys(devices))}{memory}" if devices else ""
