"""Passages and their pseudo-queries as what pre-training reads."""

from typing import Any

import pytest

from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Pairs, Passages, PseudoQueries
from tasks.pair_contexts import Contexts, pair_contexts

PASSAGES = [
    {"passage_id": f"p{i}", "doc_id": f"d{i}", "title": "Title" if i == 2 else "", "text": f"text {i}", "start": 0,
     "end": 6, "num_tokens": 2}
    for i in range(5)
]  # fmt: skip
CONTEXTS = Contexts(kind="pseudo_query", queries_per_passage=2)


def queries(**texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"passage_id": passage, "rank": rank, "text": text}
        for passage, found in texts.items()
        for rank, text in enumerate(found)
    ]


def pairs(written: Any, made: Any, pseudo_queries: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    result = made(pair_contexts, written(Passages, PASSAGES), written(PseudoQueries, pseudo_queries), settings=CONTEXTS)
    return [tuple(row.values()) for row in read_rows(result, Pairs)]


@pytest.mark.usefixtures("store")
def test_keeps_the_first_queries_of_passages_that_have_any(
    written: Any, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = pairs(written, made, queries(p1=["a", "b", "c"], p2=["d"], p4=["e", "f"]))

    assert found == [("p1", "text 1", ["a", "b"]), ("p2", "Title text 2", ["d"]), ("p4", "text 4", ["e", "f"])]
    assert "2 of 5 passages have no pseudo-query and are left out" in caplog.text


@pytest.mark.usefixtures("store")
def test_ranks_count_not_rows(written: Any, made: Any) -> None:
    rows = queries(p1=["a", "b", "c"])

    assert pairs(written, made, [rows[2], rows[1], rows[0]]) == [("p1", "text 1", ["a", "b"])]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("order", [["p2", "p1"], ["p1", "unknown"], ["p1", "p2", "p1"]])
def test_refuses_queries_out_of_order_or_of_other_passages(order: list[str], written: Any, made: Any) -> None:
    rows = [{"passage_id": passage, "rank": 0, "text": "a"} for passage in order]

    with pytest.raises(ValueError, match=f"the pseudo-queries of {order[-1]} are out of the passages' order"):
        pairs(written, made, rows)


@pytest.mark.usefixtures("store")
def test_refuses_to_pair_nothing(written: Any, made: Any) -> None:
    with pytest.raises(UserError, match="no passage has a pseudo-query"):
        pairs(written, made, [])
