"""The kept results of a study are read as they were written, and files of two runs are distinguished."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage.errors import UserError
from storage.results.study_runs import Facts, Trial, read_study_run, read_study_runs, write_study_run

FACTS = Facts("study/cpdae", 2, "CPDAE", "abc", "squad/dev", {"torch": "2.1"}, {"steps": 3.0, "flops": 4.0})


def write(results: Path, facts: Facts = FACTS) -> Path:
    folder = facts.trial.folder(results)
    scores = pa.table({
        "row": ["few"] * 3, "query_id": ["q2", "q1", "q3"], "cluster": ["b", "a", "a"], "metric": ["MRR@10"] * 3,
        "value": [0.5, 1.0, 0.2],
    })  # fmt: skip
    stage = {"stage": "train", "round": "few", "key": "k", "version": 2, "rows": None, "cached": False, "seconds": 2.0,
             "cpu_seconds": 1.5, "at": "2026-01-01", "device": "a cpu", "cores": 2}  # fmt: skip
    write_study_run(
        folder, facts, scores=scores, curves=[{"training": "few", "name": "loss", "step": 1, "value": 2}], keys=[stage]
    )
    return folder


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path)

    result = read_study_run(folder)

    assert result is not None
    assert folder == tmp_path / "cpdae" / "seed-2" == result.folder
    assert result.facts == FACTS
    assert result.facts.command == "pretrieve reproduce study/cpdae --set seed=2"
    queries, values = result.measured("few", "MRR@10") or ([], [])
    assert (queries.to_pylist(), values.tolist()) == (["q1", "q2", "q3"], [1.0, 0.5, 0.2])
    clusters, means = result.clustered("few", "MRR@10") or ([], [])
    assert (clusters.to_pylist(), means.tolist()) == (["a", "b"], [0.6, 0.5])
    assert result.measured("few", "recall@10") is None
    assert result.clustered("few", "recall@10") is None
    assert result.stages[0]["cpu_seconds"] == 1.5
    assert result.curves.to_pylist() == [{"training": "few", "name": "loss", "step": 1.0, "value": 2.0}]
    assert [run.facts.seed for run in read_study_runs(tmp_path)] == [2]


def test_a_fold_has_its_own_folder_and_splits(tmp_path: Path) -> None:
    plain, folded = write(tmp_path), write(tmp_path, replace(FACTS, fold=3))

    assert folded == tmp_path / "cpdae" / "fold-3" / "seed-2"
    assert [run.folder for run in read_study_runs(tmp_path)] == [folded, plain]
    result = read_study_run(Trial("study/cpdae", 2, 3).folder(tmp_path))
    assert result is not None
    assert result.facts.trial == Trial("study/cpdae", 2, 3)
    splits = "--set dataset.train_split=fold_3_train --set dataset.eval_splits=[fold_3_dev]"
    assert result.facts.command == f"pretrieve reproduce study/cpdae --set seed=2 {splits}"


def test_the_same_makes_the_same_bytes(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")

    assert [file.name for file in sorted(first.iterdir())] == ["curves.parquet", "keys.parquet", "scores.parquet"]
    assert all(file.read_bytes() == (second / file.name).read_bytes() for file in first.iterdir())


def test_what_is_missing_or_of_two_runs_is_not_there(tmp_path: Path) -> None:
    folder, newer = write(tmp_path / "a"), write(tmp_path / "b", replace(FACTS, report="def"))

    assert read_study_run(folder.with_name("seed-1")) is None
    (folder / "scores.parquet").write_bytes((newer / "scores.parquet").read_bytes())
    assert read_study_run(folder) is None
    (newer / "keys.parquet").unlink()
    assert read_study_run(newer) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "curves.parquet").write_bytes(b"PAR1")

    with pytest.raises(UserError, match=r"curves\.parquet: not a complete Parquet file .* remove it"):
        read_study_run(folder)
