"""Duplicates of pseudo-queries, against a comparison of every pair."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.rows import read_rows, write_rows
from storage.tables import PseudoQueries
from tasks.pseudo_queries import drop_duplicates as module
from tasks.pseudo_queries import near_duplicates
from tasks.pseudo_queries.drop_duplicates import Duplicates, drop_duplicates
from tests.tasks.corpora import pseudo_query

pytestmark = pytest.mark.usefixtures("store")
WORDS = ["what", "is", "the", "of", *(f"w{number}" for number in range(14))]


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Artifact[PseudoQueries]:
    """Random queries of few words in two files; some are empty, dropped before, or repeated in other letters."""
    draw, rows = random.Random(3), []
    for number in range(150):
        for rank in range(5):
            text = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
            if rows and draw.random() < 0.3:
                text = draw.choice(rows)["query"].upper() + draw.choice(["", "?", " w3", " ."])
            text = "" if draw.random() < 0.05 else text
            dropped = {"kept": False, "reason": "round trip"} if draw.random() < 0.1 and text else {}
            rows.append(pseudo_query(f"d{number}", rank, text, **dropped))
    folder = tmp_path_factory.mktemp("queries")
    write_rows(folder, PseudoQueries, rows[:333], "part-00000")
    write_rows(folder, PseudoQueries, rows[333:], "part-00001")
    return Artifact("queries", "written", folder)


def slowly(rows: list[dict[str, Any]], settings: Duplicates) -> list[str]:
    """Return the reason of every row, each compared with all rows before it."""
    reasons = [row["reason"] for row in rows]
    words = ["".join(letter if letter.isalnum() else " " for letter in row["query"].lower()).split() for row in rows]

    def earlier(row: int, scope: str) -> list[int]:
        return [
            other for other in range(row)
            if not reasons[other] and (scope == "corpus" or rows[other]["passage_id"] == rows[row]["passage_id"])
        ]  # fmt: skip

    for row in range(len(rows)):
        if settings.exact and not reasons[row] and any(words[row] == words[o] for o in earlier(row, settings.exact)):
            reasons[row] = "exact duplicate"
    for row in range(len(rows)):
        own = set(words[row])
        if settings.near and not reasons[row] and own and any(
            round(len(own & set(words[o])) / len(own | set(words[o])), 9) >= settings.similarity
            for o in earlier(row, settings.near)
        ):  # fmt: skip
            reasons[row] = "near duplicate"
    return reasons


@pytest.mark.parametrize(
    "settings",
    [
        {"exact": "passage"}, {"exact": "corpus"}, {"near": "passage", "similarity": 0.6},
        {"near": "corpus", "similarity": 0.8}, {"near": "corpus", "similarity": 0.7},
        {"near": "corpus", "similarity": 1},
        {"exact": "corpus", "near": "corpus", "similarity": 0.5}, {"exact": "corpus", "near": "passage"},
    ],
    ids=str,
)  # fmt: skip
def test_duplicates_are_those_of_a_comparison_of_all_pairs(
    settings: dict[str, Any], queries: Artifact[PseudoQueries], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "ROWS_PER_BLOCK", 50)
    rows = list(read_rows(queries, PseudoQueries))
    wanted = Duplicates.model_validate(settings)

    drop_duplicates.body(tmp_path, queries, settings=wanted)

    results = list(read_rows(Artifact("dropped", "here", tmp_path), PseudoQueries))

    reasons = slowly(rows, wanted)
    assert [row["reason"] for row in results] == reasons
    assert [row | {"kept": 0, "reason": 0} for row in results] == [row | {"kept": 0, "reason": 0} for row in rows]
    assert all(row["kept"] == (row["reason"] == "") for row in results)
    assert any(reason.endswith("duplicate") for reason in reasons)


def test_many_queries_of_one_template_are_compared_with_its_first_ones(
    written: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All are similar, so that the first of them is enough to find the others."""
    monkeypatch.setattr(near_duplicates, "COMPARED", 3)
    template = "how many people live in the old city of"
    queries = written(PseudoQueries, [pseudo_query(f"d{n}", 0, f"{template} w{n}") for n in range(200)])

    drop_duplicates.body(tmp_path, queries, settings=Duplicates(near="corpus", similarity=0.8))

    results = read_rows(Artifact("dropped", "here", tmp_path), PseudoQueries)
    assert [row["reason"] for row in results] == ["", *["near duplicate"] * 199]
