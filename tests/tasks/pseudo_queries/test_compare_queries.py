"""Two versions of a corpus, compared by hand and against slow definitions."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage.external import database
from storage.tables import PseudoQueries, passage_sha256
from tasks.pseudo_queries.compare_queries import compare_queries
from tests.tasks.corpora import pseudo_query

Row = dict[str, Any]
NOTHING = {"kept": 0, "made": 0, "dropped": 0, "rewritten": 0, "filtered_out": 0, "let_in": 0}


def row(passage_id: str, text: str, rank: int, query: str, **changes: Any) -> Row:
    return pseudo_query(passage_id, rank, query, passage_sha256=passage_sha256(text), **changes)


def compared(written: Any, out: Path, before: list[Row], after: list[Row]) -> dict[str, Any]:
    compare_queries.body(out, written(PseudoQueries, before), written(PseudoQueries, after))
    results: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    return results


BEFORE = [
    row("same", "t", 0, "one", round_trip=1), row("same", "t", 1, "two three", round_trip=0),
    row("old", "moved text", 0, "it moves"),
    row("edited", "first", 0, "of the first"),
    row("gone", "lost", 0, "lost"), row("gone", "lost", 1, ""),
]  # fmt: skip
AFTER = [
    row("added", "fresh", 0, "what is fresh", round_trip=2),
    row("same", "t", 0, "one", kept=False, reason="round trip", round_trip=1), row("same", "t", 1, "two, three"),
    row("same", "t", 2, "by another", generator="llm"),
    row("edited", "second", 0, "of the second"),
    row("new", "moved text", 0, "it moves"),
]  # fmt: skip


@pytest.fixture(scope="module")
def comparison(written: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return compared(written, tmp_path_factory.mktemp("comparison"), BEFORE, AFTER)


def test_passages_are_matched_by_id_and_by_text(comparison: dict[str, Any]) -> None:
    assert comparison["passages"] == {"same": 1, "moved": 1, "changed": 1, "new": 1, "removed": 1}
    assert comparison["examples"]["changed"] == [
        {"passage_id": "edited", "before": ["of the first"], "after": ["of the second"]}
    ]
    assert comparison["examples"]["new"] == [{"passage_id": "added", "after": ["what is fresh"]}]
    assert comparison["examples"]["removed"] == [{"passage_id": "gone", "before": ["lost", ""]}]


def test_queries_are_matched_by_text_generator_and_words(comparison: dict[str, Any]) -> None:
    assert comparison["queries"] == NOTHING | {"kept": 2, "rewritten": 1, "made": 3, "dropped": 2, "filtered_out": 1}
    assert comparison["generators"] == {
        "llm": NOTHING | {"made": 1},
        "t5": NOTHING | {"kept": 2, "rewritten": 1, "made": 2, "dropped": 2, "filtered_out": 1},
    }
    assert comparison["examples"]["rewritten"] == [
        {"passage_id": "same", "generator": "t5", "rank": 1, "reason": "", "before": "two three", "after": "two, three"}
    ]
    assert {example["after"] for example in comparison["examples"]["made"]} == {
        "what is fresh",
        "by another",
        "of the second",
    }
    assert {example["before"] for example in comparison["examples"]["dropped"]} == {"of the first", "lost"}
    (dropped,) = comparison["examples"]["filtered_out"]
    assert (dropped["before"], dropped["reason"]) == ("one", "round trip")
    assert comparison["examples"]["let_in"] == []


def test_figures_stand_beside_each_other(comparison: dict[str, Any]) -> None:
    before, after = comparison["before"], comparison["after"]

    assert (before["passages"], before["written"], before["queries"]) == (4, 6, 5)
    assert (after["passages"], after["written"], after["queries"]) == (4, 6, 5)
    assert before["mean_words"] == 8 / 5 + 1 / 5
    assert (before["round_trip"]["success@1"], after["round_trip"]["success@10"]) == (1 / 2, 1.0)
    assert (before["distinct_share"], before["kept_share"]) == (1.0, 5 / 6)


def test_a_generator_put_in_front_moves_no_other(written: Any, tmp_path: Path) -> None:
    before = [row("a", "t", 0, "one"), row("a", "t", 1, "two")]
    after = [row("a", "t", 0, "new", generator="llm"), row("a", "t", 1, "one"), row("a", "t", 2, "two")]

    assert compared(written, tmp_path, before, after)["queries"] == NOTHING | {"kept": 2, "made": 1}


def test_an_insertion_that_shifts_ids_keeps_what_was_written(written: Any, tmp_path: Path) -> None:
    before = [row(f"d#{n}", f"text {n}", 0, f"query {n}") for n in range(4)]
    after = [row("d#0", "in front", 0, "new"), *(row(f"d#{n + 1}", f"text {n}", 0, f"query {n}") for n in range(4))]
    results = compared(written, tmp_path, before, after)

    assert results["passages"] == {"same": 0, "moved": 4, "changed": 0, "new": 1, "removed": 0}
    assert results["queries"] == NOTHING | {"kept": 4, "made": 1}


def test_a_corpus_and_itself_are_the_same(written: Any, tmp_path: Path) -> None:
    results = compared(written, tmp_path, AFTER, AFTER)

    assert results["passages"] == {"same": 4, "moved": 0, "changed": 0, "new": 0, "removed": 0}
    assert results["queries"] == NOTHING | {"kept": 6}
    assert results["before"] | {"key": ""} == results["after"] | {"key": ""}


def test_nothing_beside_something(written: Any, tmp_path: Path) -> None:
    empty = [row("a", "t", 0, "")]
    results = compared(written, tmp_path, empty, [row("a", "t", 0, "one")])

    assert results["passages"] == {"same": 1, "moved": 0, "changed": 0, "new": 0, "removed": 0}
    assert (results["queries"], results["before"]["mean_words"]) == (NOTHING | {"made": 1}, None)


def corpus(seed: int) -> list[Row]:
    """Passages of few texts and ids, many of them twice, in an order of their own, with queries that recur."""
    drawn = random.Random(seed)
    rows = []
    for number in drawn.sample(range(120), 80):
        text, writer = f"text {drawn.randrange(60)}", drawn.choice(["t5", "llm"])
        for rank in range(drawn.randrange(1, 4)):
            kept = drawn.random() < 0.8
            query = f"q{drawn.randrange(3)}"
            rows.append(row(f"p{number}", text, rank, query, generator=writer, kept=kept, reason="" if kept else "x"))
    return rows


@pytest.mark.parametrize("memory", ["1GB", "20MB"])
def test_counts_are_those_of_the_slow_definition(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setattr(database, "MEMORY_LIMIT", memory)
    before, after = corpus(1), corpus(2)
    results = compared(written, tmp_path, before, after)

    old, new = ({row["passage_id"]: row["passage_sha256"] for row in rows} for rows in (before, after))
    lost = {key for key, text in old.items() if text not in new.values()}
    fresh = {key for key, text in new.items() if text not in old.values()}
    same = sum(old.get(key) == text for key, text in new.items())
    assert results["passages"] == {
        "same": same, "moved": len(new) - same - len(fresh), "changed": len(lost & fresh), "new": len(fresh - lost),
        "removed": len(lost - fresh),
    }  # fmt: skip

    versions = {side: [(row["passage_sha256"], row["generator"], row["rank"], row["query"]) for row in rows]
            for side, rows in (("before", before), ("after", after))}  # fmt: skip
    kept = Counter((text, by, query) for text, by, _, query in versions["before"]) & Counter(
        (text, by, query) for text, by, _, query in versions["after"]
    )
    assert results["queries"]["kept"] == kept.total()
    assert results["queries"]["made"] + results["queries"]["rewritten"] == len(after) - kept.total()
    assert results["queries"]["dropped"] + results["queries"]["rewritten"] == len(before) - kept.total()
    assert 0 < results["queries"]["rewritten"] < len(before) - kept.total()
    assert {name: sum(generator[name] for generator in results["generators"].values()) for name in NOTHING} == results[
        "queries"
    ]


def test_examples_do_not_depend_on_the_memory(written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compared(written, tmp_path / "whole", corpus(1), corpus(2))
    monkeypatch.setattr(database, "MEMORY_LIMIT", "20MB")
    spilt = compared(written, tmp_path / "spilt", corpus(1), corpus(2))

    assert spilt["examples"] == whole["examples"]
    assert {kind for kind, results in whole["examples"].items() if len(results) == 5} > {"made", "dropped", "new"}
