"""The pages about titles in spans have the tables of the benchmark's result."""

import json
from pathlib import Path

from benchmarks.title_shortcut import RESULT, tables

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_have_the_figures_of_the_result() -> None:
    parts = "\n".join(tables(json.loads(RESULT.read_text()))).split("\n\n")
    log, fidelity = ((DOCS / name).read_text() for name in ("log.md", "fidelity.md"))

    assert all(part in log for part in parts)
    assert all(part in fidelity for part in parts[:-1])  # lengths of spans are in the log only
