"""A run that is read in blocks has the values of the complete run."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.row_index import PassageIndex
from storage.rows import read_table
from storage.tables import Run
from tasks.evaluation.metrics import measure_runs
from tasks.retrieval import run_lists
from tasks.retrieval.run_lists import query_blocks

METRICS = ["MRR@10", "nDCG@10", "recall@5", "success@3"]
DOCUMENTS = 40


def run_rows(seed: int) -> list[dict[str, Any]]:
    """Lists of one to thirty passages, with ties, for some of fifty queries."""
    random, rows = np.random.default_rng(seed), []
    for query in random.permutation(50)[:40]:
        passages = random.permutation(2 * DOCUMENTS)[: random.integers(1, 31)]
        scores = np.sort(random.integers(0, 12, len(passages)))[::-1] / 4
        rows += [
            {"query_id": f"q{query}", "passage_id": f"p{passage}", "view": "dense", "rank": rank, "score": score}
            for rank, (passage, score) in enumerate(zip(passages, scores, strict=True), 1)
        ]
    return rows


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_blocks_have_all_rows_of_their_queries(written: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 13)
    monkeypatch.setattr(run_lists, "ROWS_PER_BLOCK", size)
    run = written(Run, run_rows(1))
    blocks = list(query_blocks(run))

    columns = ["query_id", "passage_id", "score"]
    assert pa.concat_tables(blocks).to_pylist() == read_table(run, Run, columns).to_pylist()
    queries = [set(block["query_id"].to_pylist()) for block in blocks]
    assert sum(map(len, queries)) == len(set.union(*queries)) == 40
    assert len(blocks) == 1 if size == 10_000 else len(blocks) > 3


def test_values_in_blocks_are_those_of_the_complete_run(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    judged = [
        (f"q{query}", f"d{document}") for query in range(45) for document in random.permutation(DOCUMENTS + 3)[:3]
    ]
    grades = random.integers(0, 4, len(judged)).astype(np.int32)
    qrels = pa.table({"query_id": [q for q, _ in judged], "doc_id": [d for _, d in judged], "grade": grades})
    ids = range(2 * DOCUMENTS)
    passages = PassageIndex.of(pa.table({"passage_id": [f"p{n}" for n in ids], "doc_id": [f"d{n // 2}" for n in ids]}))
    runs = [written(Run, run_rows(seed)) for seed in (1, 2)]

    _, complete = measure_runs(qrels, passages, [[read_table(run, Run)] for run in runs], METRICS, 2)
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 13)
    monkeypatch.setattr(run_lists, "ROWS_PER_BLOCK", 50)
    _, in_blocks = measure_runs(qrels, passages, map(query_blocks, runs), METRICS, 2)

    for one, other in zip(complete, in_blocks, strict=True):
        assert {name: values.tolist() for name, values in one.items()} == {
            name: values.tolist() for name, values in other.items()
        }
        assert all(values.any() for values in one.values())


def test_a_query_in_two_places_is_refused(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_rows(1)
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 13)
    monkeypatch.setattr(run_lists, "ROWS_PER_BLOCK", 50)
    run, name = written(Run, [*rows, rows[0]]), rows[0]["query_id"]
    qrels = pa.table({"query_id": [name], "doc_id": ["d1"], "grade": pa.array([1], pa.int32())})
    passages = [row["passage_id"] for row in rows]
    index = PassageIndex(pa.array(sorted(set(passages))))

    with pytest.raises(ValueError, match=f"the run has rows of query '{name}' in several places"):
        measure_runs(qrels, index, [query_blocks(run)], METRICS, 1)
