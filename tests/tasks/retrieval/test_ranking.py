"""Lists of places: their order, where they end, and how deep a search goes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from storage.row_index import PassageIndex
from tasks.retrieval.ranking import Hits, first_documents, in_order, run_rows
from tasks.retrieval.search import first_depth, search_documents


def table(names: Sequence[str]) -> PassageIndex:
    """Passages named DOCUMENT#NUMBER."""
    return PassageIndex.of(pa.table({"passage_id": list(names), "doc_id": [name.split("#")[0] for name in names]}))


def hits(rows: Sequence[int], scores: Sequence[float]) -> Hits:
    return Hits(np.array(rows, np.int64), np.array(scores, np.float32))


def test_ties_are_ordered_by_the_bytes_of_the_id() -> None:
    ids = table(["a", "B", "é", "z", "10", "9"])
    ordered = in_order(ids, *hits([0, 1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 2]))
    assert [ids.ids[int(row)].as_py() for row in ordered.rows] == ["9", "é", "z", "a", "B", "10"]


def test_lists_end_with_the_last_requested_document() -> None:
    ids = table(["a#0", "a#1", "b#0", "c#0", "b#1"])
    results = hits([0, 1, 2, 4, 3], [5, 4, 3, 2, 1])
    assert first_documents(ids, results, 2).rows.tolist() == [0, 1, 2]
    assert first_documents(ids, results, 3).rows.tolist() == [0, 1, 2, 4, 3]
    assert first_documents(ids, results, 9).rows.tolist() == [0, 1, 2, 4, 3]


def test_rows_of_a_run() -> None:
    ids = table(["a", "b", "c"])
    rows = run_rows(
        ["q", "nothing", "r"], [hits([2, 0], [2, 1]), hits([], []), hits([1], [7])], ids, "dense"
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("q", "c", "dense", 1, 2.0),
        ("q", "a", "dense", 2, 1.0),
        ("r", "b", "dense", 1, 7.0),
    ]
    assert len(run_rows(["q"], [hits([], [])], ids, "dense")) == 0


@given(
    documents=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    wanted=st.integers(1, 8),
)
@example(documents=[0] * 30 + [1, 2, 3], lengths=[33, 31, 5, 0], wanted=2)  # two documents at the average depth of 17
def test_lists_are_deepened_until_they_have_the_documents(
    documents: list[int], lengths: list[int], wanted: int
) -> None:
    ids = table([f"d{document}#{number}" for number, document in enumerate(documents)])
    whole = [hits(range(min(length, len(ids))), np.linspace(1, 0, min(length, len(ids)))) for length in lengths]

    def lookup(queries: Sequence[int], depth: int) -> list[Hits]:
        return [Hits(whole[query].rows[:depth], whole[query].scores[:depth]) for query in queries]

    for results, all_of_it in zip(search_documents(lookup, len(lengths), wanted, ids), whole, strict=True):
        assert results.rows.tolist() == first_documents(ids, all_of_it, wanted).rows.tolist()


def test_the_first_depth_is_the_mean_number_of_passages() -> None:
    assert first_depth(10, table(["a#0", "a#1", "b#0", "b#1"])) == 20
    assert first_depth(10, table(["a", "b"])) == 10
