"""Passages and their pseudo-queries as what pre-training reads."""

from collections.abc import Callable
from typing import Any

import pytest

from storage.artifact import Source
from storage.errors import UserError
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Pairs, Passages, PseudoQueries
from tasks.pretraining.pair_contexts import Contexts, Pairing, pair_contexts
from tests.tasks.corpora import pseudo_query
from tests.tiny import save_tokenizer

PASSAGES = [
    {"passage_id": f"p{i}", "doc_id": f"d{i}", "title": "Title" if i == 2 else "", "text": f"text {i}", "start": 0,
     "end": 6, "num_tokens": 2}
    for i in range(5)
]  # fmt: skip
QUERIES = Contexts(pseudo_queries=2, passages=[], alone=None)


def queries(**texts: list[str]) -> list[dict[str, Any]]:
    return [
        pseudo_query(passage, rank, text) for passage, results in texts.items() for rank, text in enumerate(results)
    ]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Source("tiny", folder)


Pairs_ = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def pairs(written: Any, run_stage: Any, pieces: Source, store: Store) -> Pairs_:
    """pairs(contexts, passages, pseudo_queries) -> the rows that the stage writes."""

    def make(
        contexts: Contexts, passages: list[dict[str, Any]], queries: list[dict[str, Any]] | None, **more: Any
    ) -> Any:
        settings = Pairing(**contexts.model_dump(), **{"max_tokens": 144, "language": "en", "seed": 1, **more})
        inputs = None if queries is None else written(PseudoQueries, queries)
        result = run_stage(
            pair_contexts,
            passages=written(Passages, passages),
            pseudo_queries=inputs,
            tokenizer=pieces,
            settings=settings,
        )
        return [tuple(row.values()) for row in read_rows(result, Pairs)]

    return make


def test_keeps_the_first_queries_of_passages_that_have_any(pairs: Pairs_, printed: list[str]) -> None:
    results = pairs(QUERIES, PASSAGES, queries(p1=["a", "b", "c"], p2=["d"], p4=["e", "f"]))

    assert results == [
        ("p1", "text 1", ["a", "b"], []), ("p2", "Title text 2", ["d"], []), ("p4", "text 4", ["e", "f"], []),
    ]  # fmt: skip
    assert "2 of 5 passages lack a pseudo-query or a neighbour and are omitted" in printed


def test_ranks_count_not_rows(pairs: Pairs_) -> None:
    rows = queries(p1=["a", "b", "c"])

    assert pairs(QUERIES, PASSAGES, [rows[2], rows[1], rows[0]]) == [("p1", "text 1", ["a", "b"], [])]


@pytest.mark.parametrize("order", [["p2", "p1"], ["p1", "unknown"], ["p1", "p2", "p1"]])
def test_refuses_queries_out_of_order_or_of_other_passages(order: list[str], pairs: Pairs_) -> None:
    rows = [pseudo_query(passage, 0, "a") for passage in order]

    with pytest.raises(ValueError, match=f"the pseudo-queries of {order[-1]} are out of the passages' order"):
        pairs(QUERIES, PASSAGES, rows)


def test_refuses_to_pair_nothing(pairs: Pairs_) -> None:
    with pytest.raises(UserError, match="no passage has the requested contexts"):
        pairs(QUERIES, PASSAGES, [])


# Passages of the same document


def document(doc_id: str, texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"passage_id": f"{doc_id}#{number}", "doc_id": doc_id, "title": "", "text": text, "start": 0, "end": len(text),
         "num_tokens": 2}
        for number, text in enumerate(texts)
    ]  # fmt: skip


def neighbours(*kinds: str, alone: str = "leave_out") -> Contexts:
    return Contexts.model_validate({"pseudo_queries": 0, "passages": list(kinds), "alone": alone})


def test_a_nearby_passage_is_the_one_before_or_after(pairs: Pairs_) -> None:
    texts = [f"passage {number}." for number in range(40)]

    result = pairs(neighbours("nearby"), document("d", texts), None)

    offsets = [texts.index(contexts[0]) - number for number, (_, _, _, contexts) in enumerate(result)]
    assert offsets[0] == 1
    assert offsets[-1] == -1
    assert set(offsets) == {-1, 1}
    assert 8 < offsets.count(1) < 32


def test_a_random_passage_is_any_other_within_reach(pairs: Pairs_) -> None:
    texts = [f"passage {number}." for number in range(400)]

    result = pairs(neighbours("random"), document("d", texts), None)

    offsets = [texts.index(contexts[0]) - number for number, (_, _, _, contexts) in enumerate(result)]
    assert 0 not in offsets
    assert 80 < max(offsets) <= 100
    assert -100 <= min(offsets) < -80
    assert len(set(offsets)) > 100


def test_no_context_crosses_documents(pairs: Pairs_) -> None:
    rows = [row for name in "abc" for row in document(name, [f"{name} {number}." for number in range(5)])]

    for kind in ("nearby", "random", "overlap"):
        for _, text, _, contexts in pairs(neighbours(kind), rows, None):
            assert set(contexts[0]) & set("abc") == {text[0]}


def test_an_overlapping_context_takes_last_sentences_and_goes_on(pairs: Pairs_) -> None:
    texts = ["One ox. Two oxen. Three oxen. Four oxen. ", "Five oxen. Six oxen. ", "Seven oxen. Eight oxen."]
    seen = {
        pairs(neighbours("overlap"), document("d", texts), None, seed=seed)[number][3][0].strip()
        for seed in range(12)
        for number in (0,)
    }

    assert seen == {"Four oxen. Five oxen. Six oxen.", "Three oxen. Four oxen. Five oxen. Six oxen."}
    last = pairs(neighbours("overlap"), document("d", texts), None)[2][3][0].strip()
    assert last == "Five oxen. Six oxen. Seven oxen."
    for limit in (8, 14, 30):
        short = pairs(neighbours("overlap"), document("d", texts), None, max_tokens=limit)
        assert all(len(contexts[0]) < len(" ".join(texts)) for *_, contexts in short)
    assert pairs(neighbours("overlap"), document("d", texts), None, max_tokens=1)[0][3][0].strip().count(".") == 1


def test_a_passage_without_a_neighbour(pairs: Pairs_) -> None:
    rows = [*document("a", ["alone."]), *document("b", ["one.", "two."])]

    assert [row[0] for row in pairs(neighbours("nearby"), rows, None)] == ["b#0", "b#1"]
    kept = pairs(neighbours("nearby", alone="itself"), rows, None)
    assert kept[0] == ("a#0", "alone.", [], ["alone."])
    assert len(kept) == 3


def test_several_kinds_beside_pseudo_queries(pairs: Pairs_) -> None:
    wanted = Contexts(pseudo_queries=1, passages=["random", "nearby", "overlap"], alone="leave_out")
    queries = [pseudo_query(f"d#{number}", 0, f"query {number}") for number in range(3)]

    results = pairs(wanted, document("d", ["one.", "two.", "three."]), queries)

    assert [row[2] for row in results] == [["query 0"], ["query 1"], ["query 2"]]
    assert all(len(row[3]) == 3 for row in results)


def test_a_passage_that_is_left_out_for_want_of_a_neighbour_takes_its_queries_along(pairs: Pairs_) -> None:
    rows = [*document("a", ["alone."]), *document("b", ["one.", "two."]), *document("c", ["three.", "four."])]
    queries = [pseudo_query(row["passage_id"], 0, row["passage_id"]) for row in rows[:-1]]
    wanted = Contexts(pseudo_queries=1, passages=["nearby"], alone="leave_out")

    results = pairs(wanted, rows, queries)

    assert results == [
        ("b#0", "one.", ["b#0"], ["two."]), ("b#1", "two.", ["b#1"], ["one."]), ("c#0", "three.", ["c#0"], ["four."]),
    ]  # fmt: skip


def test_sentences_are_the_passages_own(pairs: Pairs_) -> None:
    wanted = Contexts(pseudo_queries=0, passages=["sentences"], alone=None)

    (row,) = pairs(wanted, document("d", ["One ox. Two oxen. Three."]), None)

    assert [context.strip() for context in row[3]] == ["One ox.", "Two oxen.", "Three."]


@pytest.mark.parametrize(
    ("passages", "alone", "message"),
    [
        (["nearby"], None, "expected leave_out or itself"),
        ([], "itself", "no context is a neighbour; expected null"),
        (["sentences", "nearby"], "itself", "neighbours or sentences, not both"),
    ],
)
def test_contexts_that_mean_nothing(passages: list[str], alone: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contexts.model_validate({"pseudo_queries": 0, "passages": passages, "alone": alone})
