"""Which passages become positives."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Passages, Positives, PseudoQueries, Qrels, Queries, Run
from tasks.finetuning.label_positives import adopt_positives, adopt_pseudo_queries, label_passages
from tests.tasks.corpora import pseudo_query


def passages(*ids: str) -> list[dict[str, Any]]:
    return [
        {
            "passage_id": passage_id,
            "doc_id": passage_id.split("#")[0],
            "title": "",
            "text": "t",
            "start": 0,
            "end": 1,
            "num_tokens": 1,
        }
        for passage_id in ids
    ]


def run(**lists: list[str]) -> list[dict[str, Any]]:
    return [
        {"query_id": query_id, "passage_id": passage_id, "view": "text", "rank": rank, "score": 9.0 - rank}
        for query_id, ranked in lists.items()
        for rank, passage_id in enumerate(ranked, 1)
    ]


def qrels(*rows: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"query_id": query_id, "doc_id": doc_id, "grade": grade} for query_id, doc_id, grade in rows]


def values(artifact: Any, table: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read_rows(artifact, table)]


PASSAGES = passages("a#0", "a#1", "a#2", "b#0", "b#1", "c#0")


@pytest.mark.usefixtures("store")
def test_the_positive_is_the_passage_that_bm25_ranks_highest(written: Any, run_stage: Any) -> None:
    judged = written(Qrels, qrels(("q1", "a", 1), ("q1", "b", 2), ("q2", "b", 1), ("q2", "a", 0), ("q3", "c", 1)))
    result = written(Run, run(q1=["c#0", "a#2", "a#1", "b#1"], q2=["a#0", "b#0", "b#1"]))

    labelled = run_stage(label_passages, qrels=judged, passages=written(Passages, PASSAGES), bm25_run=result)

    assert values(labelled, Positives) == [
        ("q1", "a#2", "a"),
        ("q1", "b#1", "b"),
        ("q2", "b#0", "b"),
        ("q3", "c#0", "c"),  # not found by BM25: the document's first
    ]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["q1", "q2"]), st.sampled_from(["a", "b", "c"])), st.integers(-1, 2), min_size=1
    ),
    st.dictionaries(st.sampled_from(["q1", "q2"]), st.permutations([row["passage_id"] for row in PASSAGES])),
)
@pytest.mark.usefixtures("store")
def test_every_relevant_pair_has_one_positive_of_its_document(
    written: Any, run_stage: Any, grades: dict[tuple[str, str], int], lists: dict[str, list[str]]
) -> None:
    lists = {query_id: ranked[: len(ranked) // 2] for query_id, ranked in lists.items()}
    judged = written(Qrels, qrels(*((*pair, grade) for pair, grade in grades.items())))

    labelled = run_stage(
        label_passages, qrels=judged, passages=written(Passages, PASSAGES), bm25_run=written(Run, run(**lists))
    )

    rows = values(labelled, Positives)
    assert [(query_id, doc_id) for query_id, _, doc_id in rows] == [pair for pair, grade in grades.items() if grade > 0]
    for query_id, passage_id, doc_id in rows:
        of_document = [passage_id for passage_id in lists.get(query_id, []) if passage_id.startswith(f"{doc_id}#")]
        assert passage_id == (of_document or [f"{doc_id}#0"])[0]


@pytest.mark.usefixtures("store")
def test_a_relevant_document_without_passages_is_no_positive(written: Any, run_stage: Any) -> None:
    judged = [("q1", "z", 1), ("q1", PASSAGES[0]["doc_id"], 1)]

    labelled = run_stage(
        label_passages,
        qrels=written(Qrels, qrels(*judged)),
        passages=written(Passages, PASSAGES),
        bm25_run=written(Run, []),
    )

    assert [doc_id for _, _, doc_id in values(labelled, Positives)] == [PASSAGES[0]["doc_id"]]
    with pytest.raises(UserError, match="no relevant document has a passage in"):
        run_stage(
            label_passages,
            qrels=written(Qrels, qrels(*judged[:1])),
            passages=written(Passages, PASSAGES),
            bm25_run=written(Run, []),
        )


def test_adopts_queries_that_speak_of_one_document(written: Any, run_stage: Any, printed: list[str]) -> None:
    split = written(Passages, passages("a#0", "a#1", "b#0", "c?d#0"))
    generated = written(PseudoQueries, [
        pseudo_query("a#0", 0, "What is  A?"),
        pseudo_query("a#0", 1, "what is it?"),
        pseudo_query("a#1", 0, "what is a?"),
        pseudo_query("a#1", 2, "second half"),
        pseudo_query("b#0", 0, "What is it?"),
        pseudo_query("c?d#0", 0, "What is C?"),
    ])  # fmt: skip

    queries = run_stage(adopt_pseudo_queries, passages=split, pseudo_queries=generated)
    positives = run_stage(adopt_positives, passages=split, pseudo_queries=generated)

    assert values(queries, Queries) == [
        ("a#0?0", "What is  A?"),
        ("a#1?2", "second half"),
        ("c?d#0?0", "What is C?"),
    ]
    assert values(positives, Positives) == [
        ("a#0?0", "a#0", "a"),
        ("a#1?2", "a#1", "a"),
        ("c?d#0?0", "c?d#0", "c?d"),
    ]
    assert printed == ["1 texts of pseudo-queries belong to several documents and are omitted"]


@pytest.mark.usefixtures("store")
def test_refuses_pseudo_queries_of_which_none_speaks_of_one_document(written: Any, run_stage: Any) -> None:
    split = written(Passages, passages("a#0", "b#0"))
    generated = written(PseudoQueries, [pseudo_query(passage_id, 0, "it") for passage_id in ("a#0", "b#0")])

    with pytest.raises(UserError, match="every pseudo-query belongs to several documents"):
        run_stage(adopt_pseudo_queries, passages=split, pseudo_queries=generated)
