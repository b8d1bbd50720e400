"""A rehearsal runs the chain of a recipe at two sizes to its end, and stops at a stage that takes too long."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from flows.rehearsal import rehearse as rehearsal
from flows.rehearsal import synthetic
from flows.rehearsal.rehearse import num_passages, rehearse
from flows.rehearsal.synthetic import Size, Splits, write_collection
from flows.rehearsal.time_limit import OverTime, time_limit
from storage.datasets import beir
from storage.errors import UserError
from storage.formats.ids import in_slice
from tests.flows.test_json_output import has_documented_fields

SHORT = ("passages_per_query=2", "passage_max_tokens=32", "retriever.lexical.top_passages=16")
CHANGES = [
    "bm25.engine=bm25s", "train_documents=6", "teacher.mine.depth=4", "teacher.rerank.depth=4", "search.documents=20",
    "transfer={suite: msmarco, rounds: [bm25, retriever_1]}", "encode.passage_max_tokens=32", "execution.threads=1",
    "pretrain.objective.max_tokens=32",
    *(f"rounds.{number}.train.{change}" for number in (0, 1, 2) for change in SHORT),
]  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal may be tiny, and has no steps of true shapes, which would be BERT's."""
    monkeypatch.setattr(synthetic, "WORDS", 200)
    monkeypatch.setattr(rehearsal, "FEWEST", 10)
    monkeypatch.setattr(rehearsal, "_true_steps", lambda recipe, path, report: ([], []))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_recipe_with_a_teacher_and_transfer_runs_to_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    rehearse("dup_mae", 40, 2, 100.0, CHANGES, as_json=True)

    result = json.loads(capsys.readouterr().out)
    has_documented_fields("rehearse", result)
    stages = [stage["measured"]["stage"] for stage in result["stages"]]
    assert {"pretrain", "train", "train_teacher", "score", "rerank", "report"} <= set(stages)
    assert "synthetic" in [stage["measured"]["round"] for stage in result["stages"]]
    assert (result["passages"], result["full"]) == ([10, 40], 8_841_823)
    assert result["query_every"] == 20
    assert _rows(result, "ingest_queries") == 4 * 2  # two queries in each of four splits
    assert not [problem for problem in result["problems"] if "none after it ran" in problem]


@pytest.mark.usefixtures("tiny")
def test_a_stage_that_takes_too_long_ends_the_rehearsal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started = rehearsal.run_job, list[str]()

    def slow(job, current):
        started.append(job.stage.name)
        if job.stage.name == "split_corpus":
            raise OverTime
        return real(job, current)

    monkeypatch.setattr(rehearsal, "run_job", slow)
    beir_changes = ["bm25.engine=bm25s", "dataset.reader=beir", "dataset.path=nowhere"]
    rehearse("sim_cse", 40, 2, 600.0, beir_changes, as_json=False)

    printed = capsys.readouterr().out
    assert "nowhere is not known here: numbers are for 40 passages" in printed
    assert "nothing would break" not in printed
    assert "split_corpus: more than 600 s with 10 passages; none after it ran" in printed
    assert "one passage in 20 has a train query, one in 17 of MS MARCO's" in printed
    assert "│ ingest" in printed
    assert "│ split_corpus" not in printed
    assert started.count("split_corpus") == 2  # also in the run that is not measured, and not with more passages
    assert started.count("ingest_corpus") == 3


@pytest.mark.usefixtures("tiny")
def test_of_a_stage_that_refuses_the_synthetic_data_only_what_needs_it_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of measurements were lost where few queries had no relevant document in any list."""
    real, started = rehearsal.run_job, list[str]()

    def refusing(job, current):
        started.append(job.stage.name)
        if job.stage.name == "pair_contexts" and started.count("pair_contexts") != 2:  # the smallest run and the last
            raise UserError("no document has two passages")
        return real(job, current)

    monkeypatch.setattr(rehearsal, "run_job", refusing)
    beir_changes = ["bm25.engine=bm25s", "dataset.reader=beir", "dataset.path=nowhere"]
    rehearse("sim_cse", 40, 2, 600.0, beir_changes, as_json=True)

    result = json.loads(capsys.readouterr().out)
    measured = [stage["measured"]["stage"] for stage in result["stages"]]
    assert {"split_corpus", "mine"} <= set(measured)
    assert not {"pair_contexts", "pretrain", "train", "report"} & set(measured)
    assert started.count("pretrain") == 1  # it ran with fewer passages
    problem = "pair_contexts: no document has two passages (with 40 passages); what needs it was not run"
    assert problem in result["problems"]
    assert result["changes"] == beir_changes


def _rows(result: dict[str, Any], stage: str) -> int:
    return next(row["measured"]["rows"] for row in result["stages"] if row["measured"]["stage"] == stage)


def test_the_size_of_the_collection_is_counted_or_published(tmp_path: Path) -> None:
    write_collection(tmp_path, ["tide", "moon"], Size(100), Splits("train", ["dev"]))
    half = sum(in_slice(row["doc_id"], 0.5) for row in beir.texts(tmp_path, "corpus"))

    def size(reader: str, path: Path | str, fraction: float | None) -> int | None:
        changes = (f"reader={reader}", f"path={path}", f"fraction={json.dumps(fraction)}")
        return num_passages(load_recipe("sim_cse", [f"dataset.{change}" for change in changes])[0])

    assert size("beir", tmp_path, None) == 100
    assert size("beir", tmp_path, 0.5) == half < 100
    assert size("msmarco", "nowhere", None) == 8_841_823
    assert size("msmarco", "nowhere", 0.25) == round(8_841_823 / 4)
    assert size("beir", "nowhere", None) is None


def test_a_block_within_its_limit_is_not_interrupted() -> None:
    with time_limit(10.0):
        pass
    with pytest.raises(OverTime), time_limit(0.05):
        time.sleep(10)
    time.sleep(0.1)  # no alarm is left
