"""Figures of pseudo-queries, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import Passages, PseudoQueries, Queries, Run
from tasks.query_quality import Sampling, pseudo_queries_as_queries, query_quality
from tests.tasks.corpora import pseudo_query

ALL = Sampling(passages=10, samples=2, seed=1)
TEXTS = {"a": "The red fox runs.", "b": "A blue whale, singing", "c": "nothing asks for this"}


def passage(passage_id: str, text: str) -> dict[str, Any]:
    return {
        "passage_id": passage_id, "doc_id": passage_id, "title": "", "text": text, "start": 0, "end": len(text),
        "num_tokens": 4,
    }  # fmt: skip


@pytest.fixture
def passages(written: Any) -> Artifact[Passages]:
    return written(Passages, [passage(*each) for each in TEXTS.items()])


@pytest.fixture
def pseudo_queries(written: Any) -> Artifact[PseudoQueries]:
    rows = [
        ("a", 0, "red fox"),
        ("a", 1, "Red Fox?"),
        ("a", 2, "the green fox"),
        ("b", 0, "whale whale"),
        ("b", 2, "red fox"),
    ]
    return written(PseudoQueries, [pseudo_query(*row) for row in rows])


@pytest.fixture
def run(written: Any) -> Artifact[Run]:
    rows = [("a?0", "a", 1), ("a?1", "b", 1), ("a?1", "a", 10), ("a?2", "a", 11), ("b?2", "a", 1)]
    return written(
        Run,
        [
            {"query_id": query, "passage_id": found, "view": "bm25", "rank": rank, "score": 1.0 / rank}
            for query, found, rank in rows
        ],
    )


def quality(out: Path, *inputs: Artifact[Any], settings: Sampling = ALL) -> dict[str, Any]:
    query_quality.body(out, *inputs, settings=settings)
    found: dict[str, Any] = json.loads((out / "quality.json").read_text())
    return found


def test_figures_by_hand(passages: Any, pseudo_queries: Any, run: Any, tmp_path: Path) -> None:
    found = quality(tmp_path, passages, pseudo_queries, run)

    assert found["round_trip"] == 2 / 5  # a?0 at rank 1, a?1 at rank 10; a?2 too low, b?0 finds nothing
    assert found["distinct_share"] == 3 / 5  # "red fox" three times, whatever its case
    assert found["distinct_share_in_passage"] == 4 / 5
    assert found["copied_share"] == 8 / 11  # not "green", and nothing of b's "red fox"
    assert found["mean_words"] == 11 / 5
    assert found["words"] == {"2": 4, "3": 1}
    assert (found["queries"], found["passages_without_queries"]) == (5, 1)


def test_samples_stand_beside_their_passages(passages: Any, pseudo_queries: Any, run: Any, tmp_path: Path) -> None:
    samples = quality(tmp_path, passages, pseudo_queries, run)["samples"]

    assert {each["passage_id"]: each["queries"] for each in samples} == {
        "a": ["red fox", "Red Fox?", "the green fox"],
        "b": ["whale whale", "red fox"],
    }
    assert all(each["passage"] == TEXTS[each["passage_id"]] for each in samples)


def test_the_round_trip_is_of_the_drawn_passages(
    passages: Any, pseudo_queries: Any, run: Any, made: Any, tmp_path: Path
) -> None:
    shares = {}
    for seed in range(20):
        settings = Sampling(passages=1, samples=0, seed=seed)
        queries = made(pseudo_queries_as_queries, pseudo_queries, settings=settings)
        drawn = {query.split("?")[0] for query in ids(queries)}
        assert len(drawn) == 1
        shares[drawn.pop()] = quality(tmp_path / str(seed), passages, pseudo_queries, run, settings=settings)[
            "round_trip"
        ]

    assert shares == {"a": 2 / 3, "b": 0.0}


def ids(queries: Artifact[Queries]) -> list[str]:
    return [row["query_id"] for row in read_rows(queries, Queries)]


def test_queries_keep_the_text_and_get_the_passage_and_rank_as_id(pseudo_queries: Any, made: Any) -> None:
    assert ids(made(pseudo_queries_as_queries, pseudo_queries, settings=ALL)) == ["a?0", "a?1", "a?2", "b?0", "b?2"]


def test_pseudo_queries_of_other_passages_are_an_error(
    written: Any, pseudo_queries: Any, run: Any, tmp_path: Path
) -> None:
    others = written(Passages, [passage("b", TEXTS["b"]), passage("a", TEXTS["a"])])

    with pytest.raises(ValueError, match="out of the passages' order"):
        quality(tmp_path, others, pseudo_queries, run)
