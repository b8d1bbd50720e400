"""Write the documents' results from the files in `results/`: `python -m flows.documentation.results`.

Numbers in documents are never typed by hand: a test compares the documents with what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flows.documentation.markdown import with_part
from flows.recipe.shipped import PROJECT
from flows.study.claims import RESULTS, Study, load_study
from flows.study.judge import drawn_curves, judge_claims
from flows.study.order import needed
from storage.files import write_atomically
from storage.results.study_runs import StudyRun, read_study_run
from tasks.report.page.learning_curves import FIGURE, LearningCurves, curves_part, figure
from tasks.report.page.markdown import results_page
from tasks.report.page.matrix_markdown import matrix_part
from tasks.report.page.study_markdown import Claimed, pictures, runs_page, study_part
from tasks.report.page.study_summary import Answer, study_brief, study_summary

FIRST, LAST = "<!-- written by make results -->\n", "<!-- end of what make results writes -->\n"
README, RESULTS_PAGE, IMAGES = PROJECT / "README.md", PROJECT / "docs" / "results.md", PROJECT / "docs" / "images"
RUNS_PAGE, MATRICES = PROJECT / "docs" / "study_runs.md", PROJECT / "results" / "matrices"


def documents(study: Study | None = None, results: Path = RESULTS) -> dict[Path, str]:
    """Return the content of the documents and of the study's figures, by path."""
    study = study or load_study()
    claims = judge_claims(study, results)
    images = {IMAGES / name: text for name, text in pictures(claims).items()}
    if (drawn := drawn_curves(study, results)) is not None:
        images[IMAGES / FIGURE] = figure(drawn)
    runs = [run for trial in needed(study) if (run := read_study_run(trial.folder(results)))]
    return images | {
        RESULTS_PAGE: _results(study, claims, drawn, runs),
        RUNS_PAGE: f"{runs_page(runs)}\n",
        README: _readme(claims, drawn),
    }


def _results(
    study: Study, claims: Sequence[Claimed], drawn: LearningCurves | None, runs: Sequence[StudyRun]
) -> str:  # fmt: skip
    summary = study_summary(study.question, answers(study, claims), claims, FIGURE if drawn else None)
    dropped = [(claim.statement, claim.reason) for claim in study.dropped]
    parts = [summary, study_part(study.title, study.description, claims, dropped, runs)]
    parts += [*([curves_part(drawn)] if drawn else []), *_matrices()]
    reports = list((PROJECT / "results").glob("*.json"))
    return results_page(reports, "\n\n".join(part.strip("\n") for part in parts))


def _matrices() -> list[str]:
    """Return the sections of the kept matrices, with what the Markdown file next to each says of it."""
    remarks = {file.stem: file.read_text(encoding="utf-8") for file in MATRICES.glob("*.md")}
    files = sorted(MATRICES.glob("*.json"))
    return [matrix_part(json.loads(file.read_text(encoding="utf-8")), remarks.get(file.stem, "")) for file in files]


def _readme(claims: Sequence[Claimed], drawn: LearningCurves | None) -> str:
    curves = f"\n![Quality by pre-training steps and by CPU time](docs/images/{FIGURE})\n" if drawn else ""
    return with_part(README.read_text(encoding="utf-8"), f"{study_brief(claims)}\n{curves}", (FIRST, LAST), README)


def answers(study: Study, claims: Sequence[Claimed]) -> list[Answer]:
    """Return the study's answers to its question, with the sentences that its results select."""
    compared = {
        (claim.name, pair.arm, pair.than): (claim, pair) for claim in claims for pair in claim.contrasts
    }  # fmt: skip
    chosen = []
    for advice in study.advice:
        claim, pair = compared[advice.claim, advice.arm, advice.than]
        words = {"supported": advice.supported, "contradicted": advice.contradicted}.get(pair.verdict, advice.undecided)
        chosen.append(Answer(advice.asks if pair.missing else words, pair, claim.metric, claim.verdict))
    return chosen


if __name__ == "__main__":
    for path, text in documents().items():
        write_atomically(path, text)
        print(path.relative_to(PROJECT))
