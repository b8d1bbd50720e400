"""The clearest wins and losses are those of the metric, with what the two runs really ranked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.artifact import Artifact
from storage.tables import Passages, Qrels, Queries, Run
from tasks.evaluation.query_wins import MAX_CHARACTERS, Winning, wins

SETTINGS = Winning(
    run="dense", baseline="bm25", metric="MRR@10", relevant_from=1, ignore_identical_ids=False, examples=2
)
VALUES = {"bm25": [0.0, 0.5, 1.0, 0.25, 0.5], "dense": [1.0, 0.5, 0.5, 0.5, 0.25]}


def passage(passage_id: str, text: str) -> dict[str, Any]:
    doc_id = passage_id.split("-")[0]
    return {"passage_id": passage_id, "doc_id": doc_id, "title": f"title of {doc_id}", "text": text, "start": 0,
            "end": len(text), "num_tokens": 1}  # fmt: skip


def rows(ranked: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "passage_id": name, "view": "dense", "rank": rank, "score": score}
        for query, scores in ranked.items()
        for rank, (name, score) in enumerate(scores.items(), 1)
    ]


@pytest.fixture
def metrics(tmp_path: Path) -> Artifact[Any]:
    values = [
        {"run": run, "query_id": f"q{number}", "metric": metric, "value": 1 - value if metric == "nDCG@10" else value}
        for run, results in VALUES.items()
        for number, value in enumerate(results)
        for metric in ("MRR@10", "nDCG@10")
    ]
    pq.write_table(pa.Table.from_pylist(values), tmp_path / "queries.parquet")
    return Artifact("evaluate", "m" * 24, tmp_path)


def analysis_of(written: Any, metrics: Artifact[Any], out: Path, **changes: Any) -> dict[str, Any]:
    topics = written(Queries, [{"query_id": f"q{n}", "text": f"query {n}"} for n in range(5)])
    judged = written(Qrels, [
        {"query_id": query, "doc_id": doc, "grade": grade}
        for query, doc, grade in (("q0", "a", 1), ("q0", "b", 2), ("q2", "c", 0), ("q2", "d", 1), ("q3", "a", 1))
    ])  # fmt: skip
    names = ("a-0", "a-1", "b-0", "c-0", "d-0", "d-1")
    texts = written(Passages, [passage(name, f"text of {name}") for name in names])
    dense = written(Run, rows({"q0": {"a-1": 3.0, "b-0": 2.0, "a-0": 1.0}, "q2": {"c-0": 1.0, "d-1": 1.0},
                               "q3": {"b-0": 2.0, "a-0": 1.0}}))  # fmt: skip
    bm25 = written(Run, rows({"q0": {"c-0": 9.0, "a-0": 8.0}, "q2": {"c-0": 1.0}, "q4": {"c-0": 1.0}}))
    out.mkdir()
    wins.body(out, topics, judged, texts, metrics, dense, bm25, settings=SETTINGS.model_copy(update=changes))
    results: dict[str, Any] = json.loads((out / "analysis.json").read_text())
    return results


def test_the_greatest_gains_and_losses_are_shown(written: Any, metrics: Artifact[Any], tmp_path: Path) -> None:
    results = analysis_of(written, metrics, tmp_path / "out")

    assert [win["query_id"] for win in results["wins"]] == ["q0", "q3"]
    assert [loss["query_id"] for loss in results["losses"]] == ["q2", "q4"]
    assert results["wins"][0]["values"] == {"dense": 1.0, "bm25": 0.0}
    all_of_them = analysis_of(written, metrics, tmp_path / "more", examples=5)
    assert [len(all_of_them[kind]) for kind in ("wins", "losses")] == [2, 2]  # q1 is neither
    assert results["wins"][0]["query"] == "query 0"


def test_ranks_are_those_of_documents_with_ties_by_id(written: Any, metrics: Artifact[Any], tmp_path: Path) -> None:
    best, _ = (results := analysis_of(written, metrics, tmp_path / "out"))["wins"]
    lost, unjudged = results["losses"]

    assert best["ranks"] == {"dense": 1, "bm25": 2}
    assert best["relevant"] == {"doc_id": "a", "title": "title of a", "text": "text of a-1"}
    assert best["first"]["bm25"] == {
        "doc_id": "c", "passage_id": "c-0", "relevant": False, "title": "title of c", "text": "text of c-0"
    }  # fmt: skip
    assert lost["ranks"] == {"dense": 1, "bm25": None}  # c and d are equal, and d's id is the greater; c has grade 0
    assert lost["first"]["dense"]["doc_id"] == "d"
    assert (unjudged["ranks"], unjudged["relevant"]) == ({"dense": None, "bm25": None}, None)
    assert list(unjudged["first"]) == ["bm25"]


def test_grades_below_the_least_are_not_relevant(written: Any, metrics: Artifact[Any], tmp_path: Path) -> None:
    judged = analysis_of(written, metrics, tmp_path / "out", relevant_from=2)["wins"][0]

    assert judged["ranks"] == {"dense": 2, "bm25": None}
    assert judged["relevant"]["doc_id"] == "b"


def test_identical_ids_are_removed_and_unranked_documents_show_their_first_passage(
    written: Any, tmp_path: Path
) -> None:
    values = [{"run": run, "query_id": "a", "metric": "MRR@10", "value": value} for run, value in
              (("bm25", 0.0), ("dense", 1.0))]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(values), tmp_path / "queries.parquet")
    same = Artifact("evaluate", "m" * 24, tmp_path)
    topics = written(Queries, [{"query_id": "a", "text": "?"}])
    judged = written(Qrels, [{"query_id": "a", "doc_id": "z", "grade": 1}])
    long = "z" * (MAX_CHARACTERS + 1)
    texts = written(Passages, [passage("a-0", "itself"), passage("b-0", long), passage("z-0", "first"),
                               passage("z-1", "second")])  # fmt: skip
    run = written(Run, rows({"a": {"a-0": 5.0, "b-0": 1.0}}))
    settings = SETTINGS.model_copy(update={"ignore_identical_ids": True})
    (tmp_path / "out").mkdir()
    wins.body(tmp_path / "out", topics, judged, texts, same, run, run, settings=settings)
    (results,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["wins"]

    assert results["first"]["dense"]["doc_id"] == "b"
    assert results["first"]["dense"]["text"] == long[: MAX_CHARACTERS - 1] + "…"
    assert results["relevant"] == {"doc_id": "z", "title": "title of z", "text": "first"}
