"""The minimum detectable effect by the kept runs of two systems."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from flows.study.power import differences_of, show_power
from storage.errors import UserError
from storage.results.study_runs import Trial, read_study_run
from tests.studies import QUERIES, results, write


def in_folds(folder: Path) -> Path:
    """Two folds, one seed in each."""
    for name in ("good", "plain"):
        for fold in (1, 2):
            write(folder, name, fold, query_prefix=f"fold{fold}-", fold=fold)
    return folder


def test_folds_are_read_by_article(tmp_path: Path) -> None:
    differences = differences_of("good/one", "plain/one", "MRR@10", in_folds(tmp_path))

    assert differences.shape == (2, 1, 4)
    values = []
    for name in ("good", "plain"):
        run = read_study_run(Trial(name, 2, 2).folder(tmp_path))
        assert run is not None
        values.append(run.scores.to_pandas().groupby("cluster")["value"].mean().to_numpy())
    assert differences[1, 0] == pytest.approx(values[0] - values[1])


def test_seeds_without_folds_are_read_by_query(tmp_path: Path) -> None:
    assert differences_of("good/one", "plain/one", "MRR@10", results(tmp_path)).shape == (1, 2, QUERIES)


def test_runs_with_other_steps_are_another_system(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(results(tmp_path), "good", seed, changed_steps=50)
        write(tmp_path, "good", seed, changed_steps=50, fold=1)

    assert differences_of("good/one", "plain/one", "MRR@10", tmp_path).shape == (1, 2, QUERIES)
    with pytest.raises(UserError, match="expected two runs or more of each"):
        differences_of("good/steps-50/one", "plain/one", "MRR@10", tmp_path)


def test_runs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    shutil.rmtree(in_folds(tmp_path) / "plain" / "fold-2")

    with pytest.raises(UserError, match="expected two runs or more of each"):
        differences_of("good/one", "plain/one", "MRR@10", tmp_path)
    with pytest.raises(UserError, match="expected two runs or more of each"):
        differences_of("better/one", "plain/one", "MRR@10", tmp_path)


def test_folds_with_other_seeds_are_refused(tmp_path: Path) -> None:
    for name in ("good", "plain"):
        for fold, seed in ((1, 1), (1, 2), (2, 1), (2, 3)):
            write(tmp_path, name, seed, query_prefix=f"fold{fold}-", fold=fold)

    with pytest.raises(UserError, match="in every fold the same seeds"):
        differences_of("good/one", "plain/one", "MRR@10", tmp_path)


def test_equally_many_other_queries_are_refused(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(results(tmp_path), "plain", seed, query_prefix="other-")

    with pytest.raises(UserError, match="with the same folds, seeds and queries"):
        differences_of("good/one", "plain/one", "MRR@10", tmp_path)


def test_the_table_has_a_line_for_each_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_power("good/one", "plain/one", "MRR@10", 3, in_folds(tmp_path))

    output = capsys.readouterr().out
    assert "good/one − plain/one: MRR@10 +0.2" in output
    assert "folds: 2, seeds in each: 1, queries or articles in each: 4" in output
    effects = [
        float(line.split("│")[4]) for line in output.splitlines() if line.startswith("│") and "seeds" not in line
    ]
    assert len(effects) == 12
    assert np.all(np.array(effects) > 0)
