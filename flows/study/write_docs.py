"""Write the documents' results from the files in `results/`: `python -m flows.study.write_docs`.

Numbers in documents are never typed by hand: a test compares the documents with what this writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.study.claims import Study, load_study
from flows.study.judge import drawn_curves, judge_claims
from storage.errors import UserError
from storage.files import write_atomically
from tasks.report.page.learning_curves import FIGURE, LearningCurves, curves_part, figure
from tasks.report.page.markdown import results_page, results_part
from tasks.report.page.study_markdown import Claimed, pictures, study_brief, study_part

ROOT = Path(__file__).resolve().parents[2]
FIRST, LAST = "<!-- written by make results -->\n", "<!-- end of what make results writes -->\n"
README, RESULTS_PAGE, IMAGES = ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "images"
RESULTS = ROOT / "results" / "study"
NOTICE = ROOT / "results" / "notice.md"
"""What readers must know of all results, such as that recipes changed after the runs; both documents begin with it."""
SHOWN = "vital_wikipedia.json"
"""The report that the README shows."""


def documents(study: Study | None = None, results: Path = RESULTS) -> dict[Path, str]:
    """Return the content of the documents and of the study's figures, by path."""
    study = study or load_study()
    claims = judge_claims(study, results)
    images = {IMAGES / name: text for name, text in pictures(claims).items()}
    if (drawn := drawn_curves(study, results)) is not None:
        images[IMAGES / FIGURE] = figure(drawn)
    return images | {RESULTS_PAGE: _results(study, claims, drawn), README: _readme(study, claims)}


def _results(study: Study, claims: Sequence[Claimed], drawn: LearningCurves | None) -> str:
    reports = list((ROOT / "results").glob("*.json"))
    parts = [*_notice(), study_part(study.title, study.description, claims)]
    return results_page(reports, "\n".join([*parts, *([curves_part(drawn)] if drawn else [])]))


def _readme(study: Study, claims: Sequence[Claimed]) -> str:
    brief, part = study_brief(study.title, study.description, claims), results_part(ROOT / "results" / SHOWN)
    return _replaced(README.read_text(), "\n" + "\n".join([*_notice(), *filter(None, [brief]), part]) + "\n", README)


def _notice() -> list[str]:
    """Return the notice about all results; none where results are those of the current recipes."""
    return [NOTICE.read_text()] if NOTICE.is_file() else []


def _replaced(text: str, part: str, file: Path) -> str:
    """Return the text with the part between the two marks replaced."""
    before, first, rest = text.partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not first or not last:
        raise UserError(f"{file}: the lines {FIRST.strip()} and {LAST.strip()} are missing; results go between them")
    return before + FIRST + part + LAST + after


if __name__ == "__main__":
    for path, text in documents().items():
        write_atomically(path, text)
        print(path.relative_to(ROOT))
