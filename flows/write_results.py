"""Write what the documents say of results from the reports in `results/`: `python -m flows.write_results`.

The documents' numbers are never typed: a test finds a document that is not what this writes.
"""

from __future__ import annotations

from pathlib import Path

from storage.errors import UserError
from storage.files import write_atomically
from tasks.page.results import results_page, results_part

ROOT = Path(__file__).parent.parent
FIRST, LAST = "<!-- written by make results -->\n", "<!-- end of what make results writes -->\n"
SHOWN = "vital_wikipedia.json"
"""The report that the README shows."""


def documents() -> dict[Path, str]:
    """The documents as they should be."""
    reports = list((ROOT / "results").glob("*.json"))
    readme = ROOT / "README.md"
    part = results_part(ROOT / "results" / SHOWN)
    return {
        ROOT / "docs" / "results.md": results_page(reports),
        readme: _replaced(readme.read_text(), f"\n{part}\n", readme),
    }


def _replaced(text: str, part: str, file: Path) -> str:
    """The text with what stands between the two marks replaced."""
    before, first, rest = text.partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not first or not last:
        raise UserError(f"{file}: the lines {FIRST.strip()} and {LAST.strip()} are missing; results go between them")
    return before + FIRST + part + LAST + after


if __name__ == "__main__":
    for path, text in documents().items():
        write_atomically(path, text)
        print(path.relative_to(ROOT))
