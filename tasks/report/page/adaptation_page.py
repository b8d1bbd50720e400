"""The page of an adaptation: its verdict, and the measurements that it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tasks.report.page.statistics import probability
from tasks.report.page.templates import css, template
from tasks.runtime.formatting import duration


def page(content: Mapping[str, Any]) -> str:
    """Return the self-contained page of an adaptation's report.json."""
    tests = {(row["dataset"], row["run"]): row for row in content["tests"]}
    rows = [{**row, "test": tests.get((row["dataset"], row["run"]))} for row in content["rows"]]
    adaptation = template("adaptation.html.j2", duration=duration, quote=shlex.quote, probability=probability)
    return adaptation.render({**content, "css": css("report"), "rows": rows})
