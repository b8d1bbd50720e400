"""The simulated studies vary as they say, and the page has the table that is written."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulated_studies import (
    ARTICLES,
    FIRST,
    IN_TURN,
    MARKS,
    PAGE,
    TWENTY,
    VARIATIONS,
    Design,
    Deviations,
    drawn_look,
    drawn_study,
    rows,
)


def test_seeds_take_turns_and_an_article_is_the_same_in_both_looks() -> None:
    random, articles = np.random.default_rng(0), np.arange(ARTICLES, dtype=np.float64)

    of_seeds = drawn_look(random, Design(10), Deviations(0, 1, 0, 0, 0), np.zeros(ARTICLES)).differences[:, 0, 0]
    of_articles = drawn_look(random, TWENTY, Deviations(0, 0, 0, 0, 0), articles)

    assert len(set(of_seeds)) == IN_TURN
    assert of_seeds[:IN_TURN].tolist() == of_seeds[IN_TURN:].tolist()
    assert [float(name) for name in of_articles.articles] == of_articles.differences.ravel().tolist()
    assert of_articles.differences.ravel().tolist() != articles.tolist()


@pytest.mark.parametrize(
    ("sd", "expected"),
    [
        (Deviations(0.1, 0, 0, 0, 0), (0.1**2 / 5 + 0.1**2 / 20) / 4),
        (Deviations(0, 0.1, 0, 0, 0), (0.1**2 / 5 + 0.1**2 / 5) / 4),
        (Deviations(0, 0, 0.1, 0, 0), (0.1**2 / 25 + 0.1**2 / 20) / 4),
        (Deviations(0, 0, 0, 0.1, 0), 0.1**2 / 40),
        (Deviations(0, 0, 0, 0, 0.1), (0.1**2 / 200 + 0.1**2 / 40) / 4),
    ],
    ids=["folds", "seeds", "runs", "articles", "rest"],
)
def test_the_mean_of_two_looks_varies_by_what_is_drawn(sd: Deviations, expected: float) -> None:
    random = np.random.default_rng(1)

    means = [drawn_study(random, Design(5, 5), sd, TWENTY).value for _ in range(600)]

    assert np.std(means) == pytest.approx(expected**0.5, rel=0.12)


def test_the_page_has_a_row_for_each_design() -> None:
    part = PAGE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    written = [line.split(" | ")[0].removeprefix("| ") for line in part.splitlines() if line.startswith("| ")]
    cells = list(rows(studies=3))

    assert written[2:] == [row[0] for row in cells]
    assert len(cells) == len(FIRST) + 2
    assert {len(row) for row in cells} == {1 + len(VARIATIONS)}
