"""Lists in the order of a teacher's scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_table
from storage.tables import Passages, Run
from tasks.cross_encoder import shared_pairs
from tasks.cross_encoder.rerank import Reranking, rerank
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.cross_encoder.score_tables import PASSAGES, QUERIES, Tables, contents, slow_score

RERANKING = Reranking(query_max_tokens=6, max_tokens=14, depth=4)
LISTS = {"q3": [4, 9, 1, 22, 17, 3], "q0": [5, 6], "q9": [13, 26, 12, 0, 1], "q4": [2]}
"""Passages p13 and p26, p0 are cut or empty; the run's own order of queries is not the table's."""


def slow_lists(teacher: Source, lists: dict[str, list[int]], depth: int) -> list[tuple[str, str, int]]:
    """Each query's passages by score, then by descending id.

    Scores of different texts are so far apart that no rounding changes their order; equal texts have equal scores.
    """
    rows = []
    for query in (name for name in QUERIES if name in lists):
        scored = [(slow_score(teacher, query, f"p{n}"), f"p{n}") for n in lists[query][:depth]]
        gaps = np.diff(sorted(score for score, _ in scored))
        assert all(gap == 0 or gap > 0.01 for gap in gaps)
        rows += [(query, name, rank + 1) for rank, (_, name) in enumerate(sorted(scored, reverse=True))]
    return rows


@pytest.mark.parametrize(("depth", "queries"), [(1, 128), (4, 128), (4, 1), (100, 3)])
def test_reranked_lists(
    tables: Tables, teacher: Source, tmp_path: Path, depth: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", queries)
    settings = RERANKING.model_copy(update={"depth": depth})

    rerank.body(tmp_path, teacher, tables.run(LISTS), tables.queries, tables.passages, settings=settings)

    rows = read_table(Artifact[Run]("rerank", "x", tmp_path), Run).to_pylist()
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in rows] == slow_lists(teacher, LISTS, depth)
    assert {row["view"] for row in rows} == {"reranked"}
    for row in rows:
        assert row["score"] == pytest.approx(slow_score(teacher, row["query_id"], row["passage_id"]), abs=1e-5)


def test_equal_scores_fall_by_passage_id(tables: Tables, tmp_path: Path) -> None:
    encoder = tiny_cross_encoder()
    with torch.no_grad():
        encoder.classifier.weight.zero_()
    (tmp_path / "flat").mkdir()
    flat = Source("flat", folder_of(encoder, tmp_path / "flat"))

    rerank.body(
        tmp_path / "out",
        flat,
        tables.run({"q3": [10, 9, 1, 22, 17]}),
        tables.queries,
        tables.passages,
        settings=RERANKING,
    )

    rows = read_table(Artifact[Run]("rerank", "x", tmp_path / "out"), Run)
    assert rows["passage_id"].to_pylist() == ["p9", "p22", "p10", "p1"]


def test_equal_texts_have_equal_scores_anywhere_in_a_batch(tables: Tables, teacher: Source, tmp_path: Path) -> None:
    copied = [9, 17, 3] * 15
    rows = [{**PASSAGES[n], "passage_id": f"p{copy}"} for copy, n in enumerate(copied, 10)]
    inputs = tables.run({"q3": list(range(10, 55))}), tables.queries, tables.written(Passages, rows)

    rerank.body(tmp_path, teacher, *inputs, settings=RERANKING.model_copy(update={"depth": 100}))

    ranked = read_table(Artifact[Run]("rerank", "x", tmp_path), Run)
    scores = {n: slow_score(teacher, "q3", f"p{n}") for n in (9, 17, 3)}
    expected = sorted(range(10, 55), key=lambda copy: (scores[copied[copy - 10]], copy), reverse=True)
    assert ranked["passage_id"].to_pylist() == [f"p{copy}" for copy in expected]
    assert len(set(ranked["score"].to_pylist())) == 3


def test_a_killed_reranking_keeps_its_finished_shards(
    tables: Tables, teacher: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pairs, "QUERIES_PER_PART", 1)
    inputs = tables.run(LISTS), tables.queries, tables.passages
    rerank.body(tmp_path / "whole", teacher, *inputs, settings=RERANKING)
    rerank.body(tmp_path / "half", teacher, *inputs, settings=RERANKING)
    (tmp_path / "half" / "part-00002.parquet").unlink()
    kept = {path.name: path.stat().st_mtime_ns for path in parts(tmp_path / "half")}

    rerank.body(tmp_path / "half", teacher, *inputs, settings=RERANKING)

    assert contents(tmp_path / "half") == contents(tmp_path / "whole")
    assert len(kept) == 3
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in parts(tmp_path / "half")}.items()


def test_runs_that_cannot_be_reranked(tables: Tables, teacher: Source, tmp_path: Path, written: Any) -> None:
    rows = [
        {"query_id": "q3", "passage_id": "p1", "view": view, "rank": 1, "score": 1.0} for view in ("dense", "lexical")
    ]
    with pytest.raises(UserError, match="expected the lists of one view, found dense, lexical"):
        rerank.body(tmp_path, teacher, written(Run, rows), tables.queries, tables.passages, settings=RERANKING)
    with pytest.raises(UserError, match="it has no list of a query of"):
        rerank.body(tmp_path, teacher, tables.run({"q8": [1]}), tables.queries, tables.passages, settings=RERANKING)
