"""Artifacts of which the tests build a small report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.artifact import Artifact
from storage.tables import Overlap, Queries
from tasks.report.report import report
from tests.tasks.report.measurements import SETTINGS, VALUES, by_query, comparison


@pytest.fixture
def metrics(tmp_path: Path) -> Artifact[Any]:
    folder = tmp_path / "metrics"
    folder.mkdir()
    means = [
        {
            "run": run,
            "dataset": "small",
            "split": "test",
            "titles": False,
            "metric": "MRR@10",
            "value": sum(results) / 4,
            "queries": 4,
            "spread": None,
        }
        for run, results in VALUES.items()
    ]
    pq.write_table(pa.Table.from_pylist(means), folder / "rows.parquet")
    pq.write_table(pa.Table.from_pylist([comparison()]), folder / "comparisons.parquet")
    pq.write_table(by_query(), folder / "queries.parquet")
    return Artifact("evaluate", "m" * 24, folder)


@pytest.fixture
def quality(tmp_path: Path) -> Artifact[Any]:
    folder = tmp_path / "quality"
    folder.mkdir()
    queries = [{"query": "who < what", "kept": True}]
    sample = {"passage_id": "d1-0", "passage": "<script>alert(1)</script> & text", "queries": queries}
    (folder / "quality.json").write_text(
        json.dumps({"distinct_share": 0.75, "words": {"3": 6, "5": 2}, "samples": [sample]})
    )
    return Artifact("query_quality", "q" * 24, folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Artifact[Any]:
    log = tmp_path / "checkpoint" / "logs" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 1, "loss": 4.0}\n{"step": 2, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    return Artifact("train", "c" * 24, tmp_path / "checkpoint")


@pytest.fixture
def beside(tmp_path: Path, written: Any) -> tuple[Artifact[Any], Artifact[Any], list[Artifact[Any]]]:
    """The questions, how much the runs agree, and what they are searched in."""
    topics = written(Queries, [{"query_id": f"q{n}", "text": f"what is <{n}>"} for n in range(4)])
    agreement = written(Overlap, [
        {"run_a": "bm25", "run_b": "dense", "queries": 4, "overlap_10": 0.25, "overlap_100": 0.5, "overlap_1000": 0.75,
         "rbo": 0.625}
    ])  # fmt: skip
    for name, text in (
        ("lucene", {"engine": "bm25", "bytes_per_passage": 91.25}),
        ("vectors", {"bytes_per_passage": {"dense": 1536.0, "lexical": 480.5}}),
    ):
        (tmp_path / name).mkdir()
        file = "index.json" if name == "lucene" else "vectors.json"
        (tmp_path / name / file).write_text(json.dumps(text))
    return (
        topics,
        agreement,
        [Artifact("index", "i" * 24, tmp_path / "lucene"), Artifact("encode", "e" * 24, tmp_path / "vectors")],
    )


@pytest.fixture
def make(
    metrics: Artifact[Any], quality: Artifact[Any], checkpoint: Artifact[Any],
    beside: tuple[Artifact[Any], Artifact[Any], list[Artifact[Any]]],
) -> Callable[[Path], Artifact[Any]]:  # fmt: skip
    topics, agreement, stored = beside

    def build(folder: Path) -> Artifact[Any]:
        report.body(
            folder, [metrics], topics, quality, [agreement], [checkpoint], stored, None, [], [], settings=SETTINGS
        )
        return Artifact("report", "r" * 24, folder)

    return build


@pytest.fixture
def built(tmp_path: Path, make: Callable[[Path], Artifact[Any]]) -> Artifact[Any]:
    return make(tmp_path / "made")
