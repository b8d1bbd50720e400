"""Mining: no positive ever, and never fewer negatives than the list allows."""

from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.tables import Negatives, Passages, Positives, Run
from tasks.mine import Mining, mine, negatives


def ranked(names: list[str]) -> list[dict[str, object]]:
    return [
        {"query_id": "q", "passage_id": name, "view": "dense", "rank": rank, "score": 1.0 / rank}
        for rank, name in enumerate(names, start=1)
    ]


@given(
    names=st.lists(st.integers(0, 30).map(str), unique=True, max_size=25),
    positives=st.sets(st.integers(0, 30).map(str)),
    depth=st.integers(1, 30),
    keep=st.none() | st.integers(1, 30),
)
def test_no_positive_and_as_many_as_possible(
    names: list[str], positives: set[str], depth: int, keep: int | None
) -> None:
    drawn = negatives(ranked(names), positives, depth=depth, keep=keep, seed="1 q")
    left = [name for name in names if name not in positives]
    found = [row["passage_id"] for row in drawn]
    assert set(found) <= set(left[:depth])
    assert len(found) == min(len(left), depth, keep or depth)
    assert found == sorted(found, key=names.index)  # in the order of rank, so no passage twice


def test_samples_differ_by_query_and_not_by_run() -> None:
    names = [str(n) for n in range(100)]
    one, again, other = (negatives(ranked(names), (), depth=100, keep=10, seed=seed) for seed in ("1 a", "1 a", "1 b"))
    assert one == again
    assert one != other


def test_every_passage_of_every_relevant_document_leaves_before_the_cut(written, made) -> None:
    passages = written(
        Passages,
        [
            {"passage_id": f"{doc}#{n}", "doc_id": doc, "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
            for doc in ("a", "b", "c", "d")
            for n in range(2)
        ],
    )
    positives = written(Positives, [{"query_id": "q", "passage_id": f"{doc}#0", "doc_id": doc} for doc in ("a", "b")])
    order = ["a#1", "c#0", "b#0", "d#1", "b#1", "a#0", "c#1"]
    run = written(Run, ranked(order) + [{**row, "query_id": "r"} for row in ranked(["c#0"])])

    mined: Artifact[Negatives] = made(mine, run, positives, passages, settings=Mining(depth=2, negatives=None, seed=1))

    # The other passages of a and b go too, before the cut to two; query r has no positive, so none are mined.
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in read_rows(mined, Negatives)] == [
        ("q", "c#0", 2),
        ("q", "d#1", 4),
    ]
