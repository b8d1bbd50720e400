"""The first page of a study's results: question, answer, figure, and what it means for a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluation.claim_verdicts import CostComparison, SystemComparison, Verdict
from tasks.report.page.study_markdown import Claimed, difference_in_words, verdict_counts
from tasks.report.page.templates import template


@dataclass(frozen=True)
class Answer:
    """The meaning of a comparison for a user."""

    words: str
    """The answer, or the question while runs are missing."""
    comparison: SystemComparison | CostComparison
    metric: str | None
    of_claim: Verdict
    """The verdict of the claim that the comparison is a part of."""


UNDECIDED = "Not known yet: no comparison has all of its runs."


def study_brief(claims: Sequence[Claimed]) -> str:
    """Return the study in a sentence."""
    study = "[study](docs/results.md) of the papers' claims with a small model and a small collection"
    return f"{verdict_counts(claims)} ({study})."


def study_summary(question: str, answers: Sequence[Answer], claims: Sequence[Claimed], figure: str | None) -> str:
    """Return the first page; without answers the figure alone, or an empty text."""
    if not answers and not figure:
        return ""
    first, others = _first_answer(answers)
    return template("study_summary.md.j2").render(
        question=question, answers=bool(answers), first=_with_result(first) if first else UNDECIDED,
        others=[_with_result(answer) for answer in others], counts=verdict_counts(claims), figure=figure,
    )  # fmt: skip


def _first_answer(answers: Sequence[Answer]) -> tuple[Answer | None, list[Answer]]:
    """Return the first answer with all of its runs, and the others."""
    first = next((answer for answer in answers if not answer.comparison.missing), None)
    return first, [answer for answer in answers if answer is not first]


def _with_result(answer: Answer) -> str:
    pair = answer.comparison
    if pair.missing:
        return f"{answer.words} {pair.runs[0]} of {pair.runs[1]} runs are kept, so there is no answer yet."
    part = "" if answer.of_claim == pair.verdict else f" in this comparison; the claim as a whole is {answer.of_claim}"
    return f"{answer.words} Difference: {difference_in_words(pair)} {answer.metric}, {pair.verdict}{part}."
