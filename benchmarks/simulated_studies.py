"""Simulate studies without an effect, and write into docs/evaluation.md how far their intervals and p can be trusted.

`python -m benchmarks.simulated_studies` takes some minutes. Differences of articles are normally distributed, with
standard deviations like those of the study's comparisons (`pretrieve study power`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flows.documentation.markdown import table, with_part
from storage.files import write_atomically
from tasks.evaluation.claim_verdicts import LEVEL, LOOKS
from tasks.evaluation.seeds_by_queries import Mean, mean_difference
from tasks.evaluation.two_looks import Look, mean_of_both

PAGE = Path(__file__).parent.parent / "docs" / "evaluation.md"
MARKS = ("<!-- written by python -m benchmarks.simulated_studies -->\n", "<!-- end of what it writes -->")
ARTICLES, IN_TURN, FAMILY = 40, 5, 19
STUDIES, SEED = 4000, 0


@dataclass(frozen=True)
class Design:
    """Folds with equally many articles; every seed is a run in every fold, or each fold has one of five in turn."""

    folds: int
    seeds: int = 1


@dataclass(frozen=True)
class Deviations:
    """The standard deviations of a difference between folds, seeds, runs, articles, and of an article in a run."""

    folds: float
    seeds: float
    runs: float
    articles: float
    rest: float


FIRST = {
    "five folds, five seeds in each": Design(5, 5),
    "five folds, three seeds in each": Design(5, 3),
    "five folds, two seeds in each": Design(5, 2),
    "two folds, five seeds in each": Design(2, 5),
    "ten folds, five seeds in turn": Design(10),
}
SECOND = ("five folds, five seeds in each", "ten folds, five seeds in turn")
TWENTY = Design(20)
VARIATIONS = {
    "RetroMAE": Deviations(0.005, 0.001, 0.0, 0.017, 0.017),
    "CPDAE": Deviations(0.004, 0.0, 0.0, 0.009, 0.023),
    "100 questions": Deviations(0.029, 0.0, 0.021, 0.033, 0.044),
    "DupMAE": Deviations(0.017, 0.0, 0.0, 0.017, 0.017),
    "RetroMAE, seeds ten times": Deviations(0.005, 0.01, 0.0, 0.017, 0.017),
}
"""As the study's comparisons vary; in the last, seeds vary ten times as much."""


def drawn_look(random: np.random.Generator, design: Design, sd: Deviations, articles: np.ndarray) -> Look:
    """Return a look without an effect, which has the articles in a random order."""
    order = random.permutation(ARTICLES)
    shape = design.folds, design.seeds, ARTICLES // design.folds
    if design.seeds > 1:
        of_seeds = random.normal(0, sd.seeds, (1, design.seeds, 1))
    else:
        of_seeds = np.resize(random.normal(0, sd.seeds, IN_TURN), design.folds)[:, None, None]
    values = (
        random.normal(0, sd.folds, (design.folds, 1, 1)) + of_seeds
        + random.normal(0, sd.runs, (design.folds, design.seeds, 1)) + random.normal(0, sd.rest, shape)
        + articles[order].reshape(design.folds, 1, -1)
    )  # fmt: skip
    return Look(values, np.zeros_like(values), [f"{number:02}" for number in order])


def drawn_study(random: np.random.Generator, first: Design, sd: Deviations, second: Design | None) -> Mean:
    """Return the mean difference of a study without an effect."""
    articles = random.normal(0, sd.articles, ARTICLES)
    look = drawn_look(random, first, sd, articles)
    if second is None:
        return mean_difference(look.differences)
    return mean_of_both(look, drawn_look(random, second, sd, articles))


def shares(first: Design, sd: Deviations, second: Design | None, studies: int = STUDIES) -> tuple[float, float]:
    """Return the share of studies whose interval has the mean, and of those whose p is below Holm's first level."""
    random, level = np.random.default_rng(SEED), LEVEL / FAMILY / LOOKS
    means = [drawn_study(random, first, sd, second) for _ in range(studies)]
    inside = np.mean([low <= 0 <= high for low, high in (mean.interval() for mean in means)])
    return float(inside), float(np.mean([mean.p() < level for mean in means]))


def rows(studies: int = STUDIES) -> Iterator[list[str]]:
    """Yield a row for each design: for each variation both shares in percent."""
    designs: list[tuple[str, Design, Design | None]] = [(name, design, None) for name, design in FIRST.items()]
    designs += [(f"{name}; then twenty folds, five seeds in turn", FIRST[name], TWENTY) for name in SECOND]
    for name, first, second in designs:
        both = [shares(first, sd, second, studies) for sd in VARIATIONS.values()]
        yield [name, *(f"{100 * inside:.0f}, {100 * small:.2f}" for inside, small in both)]


def main() -> None:
    """Write the table."""
    text = table(["design", *VARIATIONS], list(rows()))
    write_atomically(PAGE, with_part(PAGE.read_text(encoding="utf-8"), f"\n{text}\n", MARKS, PAGE))


if __name__ == "__main__":
    main()
