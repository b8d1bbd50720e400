"""The first page of a study's results: question, answer, figure, and what it means for a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluation.claim_verdicts import CostComparison, SystemComparison
from tasks.report.page.study_markdown import Claimed, difference_in_words, verdict_counts
from tasks.report.page.templates import template


@dataclass(frozen=True)
class Answer:
    """The meaning of a comparison for a user."""

    words: str
    """The answer, or the question while runs are missing."""
    comparison: SystemComparison | CostComparison
    metric: str | None


UNDECIDED = "Not known yet: no comparison has all of its runs."


def study_brief(question: str, answers: Sequence[Answer], claims: Sequence[Claimed], runs: tuple[int, int]) -> str:
    """Return the study in a paragraph: question, answer, verdicts, and the numbers of kept and of needed runs."""
    done = f"{runs[0]:,} of {runs[1]:,} runs are done"
    if all(claim.verdict == "not run" for claim in claims):
        return f"{question} Not known yet: {done}, and none of the {len(claims)} claims has a verdict."
    answer = " ".join(answer.words for answer in answers if not answer.comparison.missing) or UNDECIDED
    return f"{question} {answer} {verdict_counts(claims)}; {done}."


def study_summary(question: str, answers: Sequence[Answer], claims: Sequence[Claimed], figure: str | None) -> str:
    """Return the first page; without answers the figure alone, or an empty text."""
    if not answers and not figure:
        return ""
    lines = [
        {
            "words": answer.words, "missing": bool(answer.comparison.missing), "runs": answer.comparison.runs,
            "ours": difference_in_words(answer.comparison), "metric": answer.metric,
            "verdict": answer.comparison.verdict,
        }
        for answer in answers
    ]  # fmt: skip
    return template("study_summary.md.j2").render(
        question=question, lines=lines, counts=verdict_counts(claims), figure=figure,
        decided=sum(not line["missing"] for line in lines), undecided=UNDECIDED,
    )  # fmt: skip
