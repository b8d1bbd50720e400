"""The minimum detectable effect by the kept runs of two systems."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from flows.study.power import designs, differences_of, show_power
from storage.errors import UserError
from storage.results.study_runs import Trial, read_study_run
from tests.studies import QUERIES, results, write


def in_folds(folder: Path, articles: int = 4) -> Path:
    """Two folds, one seed in each."""
    for name in ("good", "plain"):
        for fold in (1, 2):
            write(
                folder,
                name,
                fold,
                query_prefix=f"fold{fold}-",
                fold=fold,
                articles=[f"article-{number:02}" for number in range(articles)],
            )
    return folder


def test_folds_are_read_by_article(tmp_path: Path) -> None:
    [differences] = differences_of("good/one", "plain/one", "MRR@10", in_folds(tmp_path))

    assert differences.shape == (2, 1, 4)
    values = []
    for name in ("good", "plain"):
        run = read_study_run(Trial(name, 2, 2).folder(tmp_path))
        assert run is not None
        values.append(run.scores.to_pandas().groupby("cluster")["value"].mean().to_numpy())
    assert differences[1, 0] == pytest.approx(values[0] - values[1])


def test_seeds_without_folds_are_read_by_query(tmp_path: Path) -> None:
    [differences] = differences_of("good/one", "plain/one", "MRR@10", results(tmp_path))
    assert differences.shape == (1, 2, QUERIES)


def test_runs_with_other_steps_are_another_system(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(results(tmp_path), "good", seed, changed_steps=50)
        write(tmp_path, "good", seed, changed_steps=50, fold=1)

    [own], [other] = (
        differences_of(f"{name}/one", "plain/one", "MRR@10", tmp_path) for name in ("good", "good/steps-50")
    )
    assert own.shape == other.shape == (1, 2, QUERIES)  # the runs in fold 1 are of one system only


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


def test_folds_of_other_sizes_are_tables_of_their_own(tmp_path: Path) -> None:
    """A study has five folds with every seed in each, and ten with a seed each."""
    for name in ("good", "plain"):
        for fold, seed in ((1, 1), (1, 2), (2, 1), (2, 2)):
            write(tmp_path, name, seed, query_prefix=f"fold{fold}-", fold=fold)
        for fold, seed in ((11, 21), (12, 22), (13, 21)):
            write(tmp_path, name, seed, query_prefix=f"fold{fold}-", fold=fold, articles=["one", "two"])

    five, ten = differences_of("good/one", "plain/one", "MRR@10", tmp_path)

    assert (five.shape, ten.shape) == ((2, 2, 4), (3, 1, 2))
    for name in ("good", "plain"):  # the first of further folds
        write(tmp_path, name, 31, query_prefix="fold21-", fold=21, articles=["one"])
    assert len(differences_of("good/one", "plain/one", "MRR@10", tmp_path)) == 2


def test_designs_have_the_articles_that_there_are() -> None:
    crossed = {(design.folds, design.seeds, design.queries) for design in designs(40, 5, 5)}
    in_turn = {(design.folds, design.seeds, design.queries) for design in designs(40, 1, 10)}

    assert {(5, 5, 8), (10, 1, 4), (10, 5, 4), (1, 2, 40)} <= crossed
    assert in_turn == {(5, 1, 8), (10, 1, 4), (20, 1, 2)}  # one seed in each fold says nothing of several


def test_the_table_has_a_line_for_each_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_power("good/one", "plain/one", "MRR@10", 3, in_folds(tmp_path, articles=20))

    output = capsys.readouterr().out
    assert "good/one − plain/one: MRR@10 +0.2" in output
    assert "folds: 2, seeds in each: 1, queries or articles in each: 20" in output
    effects = [
        float(line.split("│")[4]) for line in output.splitlines() if line.startswith("│") and "seeds" not in line
    ]
    assert len(effects) == 3  # a seed each, in five folds, ten or twenty
    assert np.all(np.array(effects) > 0)
