"""Figures of pseudo-queries, by hand and against slow definitions."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.external import distinct
from storage.rows import read_rows
from storage.tables import Passages, PseudoQueries, Queries, Run
from tasks.pseudo_queries.quality_counts import quantiles
from tasks.pseudo_queries.query_quality import Sampling, pseudo_queries_as_queries, query_quality
from tasks.pseudo_queries.query_text import loop_of, words_of
from tests.tasks.corpora import passage, pseudo_query

ALL = Sampling(passages=10, samples=2, seed=1, long_words=3)
TEXTS = {"a": "The red fox runs.", "b": "A blue whale, singing", "c": "nothing asks for this"}
QUERIES = [
    ("a", 0, "red fox"), ("a", 1, "Red Fox?"), ("a", 2, "the green fox"), ("b", 0, "whale whale"), ("b", 2, "red fox"),
]  # fmt: skip


@pytest.fixture(scope="module")
def passages(written: Any) -> Artifact[Passages]:
    return written(Passages, [passage(*text) for text in TEXTS.items()])


@pytest.fixture(scope="module")
def pseudo_queries(written: Any) -> Artifact[PseudoQueries]:
    return written(PseudoQueries, [pseudo_query(*row) for row in QUERIES])


@pytest.fixture(scope="module")
def run(written: Any) -> Artifact[Run]:
    rows = [("a?0", "a", 1), ("a?1", "b", 1), ("a?1", "a", 10), ("a?2", "a", 11), ("b?2", "a", 1)]
    return written(
        Run,
        [
            {"query_id": query, "passage_id": results, "view": "bm25", "rank": rank, "score": 1.0 / rank}
            for query, results, rank in rows
        ],
    )


def quality(out: Path, *inputs: Artifact[Any] | None, settings: Sampling = ALL) -> dict[str, Any]:
    query_quality.body(out, *inputs, settings=settings)
    results: dict[str, Any] = json.loads((out / "quality.json").read_text())
    return results


def test_figures_by_hand(passages: Any, pseudo_queries: Any, run: Any, tmp_path: Path) -> None:
    results = quality(tmp_path, passages, pseudo_queries, run)

    # a?0 at rank 1, a?1 at rank 10; a?2 too low, b?0 and b?2 find nothing of their own
    assert results["round_trip"] == {
        "of": "a draw of passages", "queries": 5, "success@1": 0.2, "success@10": 0.4, "mrr@10": pytest.approx(0.22),
        "cut": None, "ranks": [[0, 3, 0], [1, 1, 0], [10, 1, 0]],
    }  # fmt: skip
    assert results["distinct_share"] == 3 / 5  # "red fox" three times, whatever its case
    assert results["distinct_share_in_passage"] == 4 / 5
    assert results["copied_share"] == 8 / 11  # not "green", and nothing of b's "red fox"
    assert results["copied_tenths"] == [1, 0, 0, 0, 0, 0, 1, 0, 0, 3]
    assert results["verbatim_share"] == 2 / 5  # "whale whale" has the words of its passage, and is no piece of it
    assert results["mean_words"] == 11 / 5
    assert results["words"] == {"2": 4, "3": 1}
    assert results["first_words"] == [["red", 3], ["the", 1], ["whale", 1]]
    assert results["question_share"] == 1 / 5
    assert (results["passages"], results["written"], results["queries"], results["passages_without_queries"]) == (
        3,
        5,
        5,
        1,
    )
    assert (results["relevance"], results["dropped"], results["long"]["queries"]) == (None, {}, 0)


def test_scores_of_all_that_were_scored_with_the_cuts(passages: Any, written: Any, tmp_path: Path) -> None:
    scores = [(1, 2.5, ""), (2, -0.5, ""), (3, 1.0, "round trip"), (0, 4.0, "round trip"), (2, -1.25, "relevance")]
    rows = [
        pseudo_query("a", rank, f"query {rank}", round_trip=trip, relevance=score, kept=not reason, reason=reason)
        for rank, (trip, score, reason) in enumerate(scores)
    ]
    results = quality(tmp_path, passages, written(PseudoQueries, [*rows, pseudo_query("b", 0, "")]), None)

    assert results["dropped"] == {"empty": 1, "relevance": 1, "round trip": 2}
    assert results["round_trip"] == {
        "of": "every query", "queries": 5, "success@1": 0.2, "success@10": 0.8, "cut": 2,
        "mrr@10": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 2) / 5),
        "ranks": [[0, 0, 1], [1, 1, 0], [2, 1, 1], [3, 0, 1]],
    }  # fmt: skip
    assert results["relevance"]["cut"] == -0.5
    assert results["relevance"]["mean"] == pytest.approx(5.75 / 5)
    assert results["relevance"]["counts"] == [[-1.25, 0, 1], [-0.5, 1, 0], [1.0, 0, 1], [2.5, 1, 0], [4.0, 0, 1]]
    assert results["kept_share"] == 2 / 6


def test_each_generator_has_its_figures(passages: Any, written: Any, tmp_path: Path) -> None:
    rows = [
        pseudo_query("a", 0, "red fox"), pseudo_query("a", 1, "red red red fox runs", generator="llm"),
        pseudo_query("b", 0, "red fox"), pseudo_query("b", 1, "", generator="llm"),
    ]  # fmt: skip
    results = quality(tmp_path, passages, written(PseudoQueries, rows), None)

    assert {name: row["written"] for name, row in results["generators"].items()} == {"llm": 2, "t5": 2}
    assert results["generators"]["t5"]["distinct_share"] == 1 / 2
    assert results["generators"]["llm"] | results["generators"]["llm"] == results["generators"]["llm"] | {
        "queries": 1, "dropped": {"empty": 1}, "mean_words": 5.0, "looped_share": 1.0, "long_share": 1.0
    }  # fmt: skip
    assert results["loops"]["examples"] == [{"query": "red red red fox runs", "loop": "red"}]
    assert results["long"] == {"words": 3, "queries": 1, "examples": [{"query": "red red red fox runs", "words": 5}]}


def test_a_corpus_of_which_nothing_is_kept_has_no_shares(passages: Any, written: Any, tmp_path: Path) -> None:
    rows = [pseudo_query(text, 0, "") for text in TEXTS]
    results = quality(tmp_path, passages, written(PseudoQueries, rows), None)

    assert (results["written"], results["queries"], results["passages_without_queries"]) == (3, 0, 3)
    assert {name for name, value in results.items() if value is None} == {
        "mean_words", "distinct_share", "distinct_share_in_passage", "copied_share", "verbatim_share",
        "question_share", "long_share", "looped_share", "round_trip", "relevance",
    }  # fmt: skip
    assert (results["words_quantiles"], results["samples"]) == ({}, [])


def test_samples_stand_beside_their_passages(passages: Any, pseudo_queries: Any, run: Any, tmp_path: Path) -> None:
    samples = quality(tmp_path, passages, pseudo_queries, run)["samples"]

    assert {sample["passage_id"]: [query["query"] for query in sample["queries"]] for sample in samples} == {
        "a": ["red fox", "Red Fox?", "the green fox"],
        "b": ["whale whale", "red fox"],
    }
    assert all(sample["passage"] == TEXTS[sample["passage_id"]] for sample in samples)


def test_a_sample_is_not_longer_than_can_be_read(written: Any, tmp_path: Path) -> None:
    passages = written(Passages, [passage("a", "word " * 100_000)])
    rows = [pseudo_query("a", rank, "long " * 1000) for rank in range(100)]
    (sample,) = quality(tmp_path, passages, written(PseudoQueries, rows), None)["samples"]

    assert len(sample["passage"]) == 2000
    assert [len(query["query"]) for query in sample["queries"]] == [300] * 30
    assert sample["more"] == 70


def test_the_round_trip_is_of_the_drawn_passages(
    passages: Any, pseudo_queries: Any, run: Any, run_stage: Any, tmp_path: Path
) -> None:
    shares = {}
    for seed in range(8):
        settings = Sampling(passages=1, samples=0, seed=seed)
        queries = run_stage(pseudo_queries_as_queries, pseudo_queries, settings=settings)
        drawn = {query.split("?")[0] for query in ids(queries)}
        assert len(drawn) == 1
        results = quality(tmp_path / str(seed), passages, pseudo_queries, run, settings=settings)
        shares[drawn.pop()] = results["round_trip"]["success@10"]

    assert shares == {"a": 2 / 3, "b": 0.0}


def ids(queries: Artifact[Queries]) -> list[str]:
    return [row["query_id"] for row in read_rows(queries, Queries)]


def test_queries_keep_the_text_and_get_the_passage_and_rank_as_id(pseudo_queries: Any, run_stage: Any) -> None:
    assert ids(run_stage(pseudo_queries_as_queries, pseudo_queries, settings=ALL)) == [
        "a?0",
        "a?1",
        "a?2",
        "b?0",
        "b?2",
    ]


def test_pseudo_queries_of_other_passages_are_an_error(
    written: Any, pseudo_queries: Any, run: Any, tmp_path: Path
) -> None:
    others = written(Passages, [passage("b", TEXTS["b"]), passage("a", TEXTS["a"])])

    with pytest.raises(ValueError, match="out of the passages' order"):
        quality(tmp_path, others, pseudo_queries, run)


def test_languages_are_told_of_what_is_long_enough(written: Any, tmp_path: Path) -> None:
    passages = written(Passages, [passage("a", "The red fox is a small animal that lives in the woods of Europe.")])
    texts = ["where does the red fox live", "wo lebt der rote fuchs in europa", "red fox"]
    rows = [pseudo_query("a", rank, text) for rank, text in enumerate(texts)]
    results = quality(tmp_path, passages, written(PseudoQueries, rows), None)["languages"]

    assert results["of"] == {"de": 1, "en": 1, "too short": 1}
    assert (results["queries"], results["compared"], results["foreign"]) == (3, 2, 1)
    assert results["examples"] == [{"query": texts[1], "language": "de", "passage": "en"}]


def test_distinct_texts_are_counted_on_disk_as_in_memory(
    passages: Any, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    texts = [f"query number {random.randrange(300)}" for _ in range(1000)]
    rows = [pseudo_query("a", rank, text) for rank, text in enumerate(texts)]
    corpus = written(PseudoQueries, rows)
    (tmp_path / "scratch" / "all").mkdir(parents=True)
    (tmp_path / "scratch" / "all" / "007").write_bytes(b"of a run that was killed")
    monkeypatch.setattr(distinct, "BUFFERED", 64)

    assert quality(tmp_path, passages, corpus, None)["distinct_share"] == len(set(texts)) / 1000


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("who who who is", "who"), ("who is who is who is it", "who is"), ("a b c d a b c d a b c d", "a b c d"),
        ("the best of the best of the best", None), ("a b c d e a b c d e a b c d e", None), ("no no never no", None),
        ("", None), ("so far so far so", None), ("1 1, 1", "1"),
    ],
)  # fmt: skip
def test_a_loop_is_one_to_four_words_three_times_in_a_row(text: str, loop: str | None) -> None:
    assert loop_of(words_of(text)) == loop


def test_loops_are_those_of_the_slow_definition() -> None:
    drawn = random.Random(5)
    for _ in range(3000):
        words = [drawn.choice("ab") for _ in range(drawn.randrange(14))]
        slow = any(
            words[start : start + 3 * size] == 3 * words[start : start + size] and start + 3 * size <= len(words)
            for size in (1, 2, 3, 4)
            for start in range(len(words))
        )
        assert (loop_of(words) is not None) == slow, words


def test_chinese_words_are_characters() -> None:
    assert words_of("什么是GPU") == ["什", "么", "是", "gpu"]


def test_quantiles_are_the_least_values_with_so_many_at_or_below() -> None:
    drawn = random.Random(7)
    values = sorted(drawn.randrange(9) for _ in range(100))
    slow = {
        str(percent): min(v for v in values if sum(w <= v for w in values) * 100 >= percent * len(values))
        for percent in (5, 25, 50, 75, 95, 99)
    }

    assert quantiles(Counter(values)) == slow | {"max": max(values)}
    exact = quantiles({1: 25, 2: 25, 3: 50})
    assert (exact["25"], exact["50"], exact["75"]) == (1, 2, 3)
    assert quantiles({}) == {}
