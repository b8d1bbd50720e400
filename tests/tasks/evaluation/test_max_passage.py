"""Folding against its description in plain Python, on runs that are out of order, tied, or name a passage twice."""

import random

import numpy as np
import pyarrow as pa
import pytest

from storage.row_index import PassageIndex, RowIndex
from tasks.evaluation.max_passage import fold, graded

DOCS = ["d", "d-", "d1", "d10", "d1-0", "é", "z", "Z", "e", "f"]  # one is the beginning of another


def reference(
    rows: list[tuple[str, str, float]], owner: dict[str, str], query_order: list[str], cutoff: int
) -> list[list]:
    """Each query's documents with the score of their best passage: scores fall, equal ones by id's bytes, falling."""
    lists = []
    for query in query_order:
        best: dict[str, float] = {}
        for of, passage, score in rows:
            if of == query:
                best[owner[passage]] = max(score, best.get(owner[passage], -np.inf))
        ranked = sorted(best.items(), key=lambda pair: (pair[1], pair[0].encode()), reverse=True)
        lists.append(ranked[:cutoff])
    return lists


@pytest.mark.parametrize("order", ["falling", "any", "one passage a document"])
@pytest.mark.parametrize("seed", range(8))
def test_folding_equals_the_reference(seed: int, order: str) -> None:
    draw = random.Random(seed)
    number = 1 if order == "one passage a document" else 3
    owner = {f"{doc}#{n}": doc for doc in DOCS for n in range(number)}
    query_order, rows = ["q2", "q1", "absent", "q3"], []
    for query in draw.sample(["q1", "q2", "q3", "nobody's"], 4):
        results = draw.choices(list(owner), k=25) if number > 1 else draw.sample(list(owner), 8)
        listed = [(query, passage, draw.choice([-1.5, 0.0, 0.25, 0.5, draw.random()])) for passage in results]
        rows += listed if order == "any" else sorted(listed, key=lambda row: -row[2])
    if order == "any":
        draw.shuffle(rows)
    rows = [(query, passage, float(np.float32(score))) for query, passage, score in rows]
    ids = list(owner)
    draw.shuffle(ids)
    passages = PassageIndex.of(pa.table({"passage_id": ids, "doc_id": [owner[passage] for passage in ids]}))
    query_ids, passage_ids, scores = zip(*rows, strict=True)
    run = pa.table({"query_id": query_ids, "passage_id": passage_ids, "score": pa.array(scores, pa.float32())})
    doc_ids = passages.doc_ids.to_pylist()

    for cutoff in (1, 4, 1000):
        matrix = fold(run, RowIndex(pa.array(query_order)), passages, cutoff)
        ours = [[(doc_ids[int(doc)], score) for doc, score in query if doc >= 0] for query in matrix]
        assert ours == reference(rows, owner, query_order, cutoff)
        assert not matrix[matrix[:, :, 0] < 0][:, 1].any()


def test_judgements_are_sorted_by_descending_grade() -> None:
    passages = PassageIndex.of(pa.table({"passage_id": ["a#0"], "doc_id": ["a"]}))
    qrels = pa.table({"query_id": ["q2", "q1", "q2", "q2"], "doc_id": ["a", "b", "c", "b"], "grade": [1, 2, 0, 3]})

    matrix = graded(qrels, RowIndex(pa.array(["q2", "q1"])), passages)

    assert matrix[:, :, 0].tolist() == [[2, 0, 3], [2, -1, -1]]  # a is 0; b and c have no passages
    assert matrix[:, :, 1].tolist() == [[3, 1, 0], [2, 0, 0]]
