"""Learning curves from kept runs: points, intervals, the figure and the table."""

import re
import shutil
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from flows.documentation.results import IMAGES, README, RESULTS_PAGE, documents
from flows.study.claims import Study
from flows.study.judge import drawn_curves
from flows.study.order import curve_runs, measured_rows
from storage.errors import UserError
from storage.results.study_runs import Trial, read_study_run
from tasks.report.page.learning_curves import FIGURE, WITHOUT, LearningCurves, figure
from tests.studies import study, write

STEPS, SEEDS = (100, 400), (1, 2, 3)
CURVES = {
    "metric": "MRR@10", "rows": {"one": "fine-tuning"}, "without": {"one": {"recipe": "made/none", "row": "start"}},
    "systems": {name.title(): {"recipe": f"made/{name}", "steps": list(STEPS)} for name in ("good", "plain")},
    "own_steps": 200, "seeds": list(SEEDS),
}  # fmt: skip


def with_curves(folder: Path) -> Study:
    """Runs of two systems and of the one without pre-training; the last number of steps of one lacks a seed."""
    for seed in SEEDS:
        write(folder, "none", seed, row="start", pretraining={})
        for name in ("good", "plain"):
            for steps in STEPS:
                cost = {"steps": float(steps), "tokens": 1.0, "flops": 1.0, "cpu_seconds": 0.25 * seed}
                write(folder, name, seed, changed_steps=steps, pretraining=cost)
    shutil.rmtree(folder / "plain" / "steps-400" / "seed-3")
    return study(curves=CURVES)


def test_a_point_is_the_mean_of_its_runs_with_an_interval(tmp_path: Path) -> None:
    drawn = drawn_curves(with_curves(tmp_path), tmp_path)

    assert isinstance(drawn, LearningCurves)
    points = drawn.points["one"]
    assert [point.steps for point in points["Good"]] == [0, 100, 400]
    assert [(point.steps, point.runs) for point in points["Plain"]] == [(0, 3), (100, 3), (400, 2)]
    assert points["Good"][0] == points["Plain"][0]
    assert [point.seconds for point in points["Good"]] == [0.0, 50.0, 200.0]  # 0.5 seconds a step on average
    values = []
    for seed in SEEDS:
        run = read_study_run(Trial("made/good", seed, None, 400).folder(tmp_path))
        assert run is not None
        values.append((run.measured("one", "MRR@10") or (0, np.zeros(1)))[1])
    point = points["Good"][2]
    assert (point.value, point.runs) == (pytest.approx(np.mean(values)), 3)
    by_query = np.mean(values, axis=0)
    half = t.ppf(0.975, len(by_query) - 1) * by_query.std(ddof=1) / len(by_query) ** 0.5
    assert (point.high - point.low) / 2 == pytest.approx(half, rel=0.1)  # the queries vary much more than the runs


def test_an_interrupted_pretraining_has_no_point_by_time(tmp_path: Path) -> None:
    wanted = with_curves(tmp_path)
    write(tmp_path, "good", 1, changed_steps=400, pretraining={"steps": 400.0, "tokens": 1.0, "flops": 1.0})

    drawn = drawn_curves(wanted, tmp_path)

    assert drawn is not None
    assert [point.seconds for point in drawn.points["one"]["Good"]] == [0.0, 50.0, None]


def test_the_figure_has_a_bar_for_each_interval_at_its_numbers(tmp_path: Path) -> None:
    drawn = drawn_curves(with_curves(tmp_path), tmp_path)
    assert drawn is not None

    root = ET.fromstring(figure(drawn))

    lines = [element.get("points", "").split() for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
    curves, bars = [line for line in lines if len(line) == 3], [line for line in lines if len(line) == 2]
    assert len(curves) == 4  # two systems, by steps and by time
    assert len(bars) == 4 * 3
    low, high = (float(end.split(",")[1]) for end in bars[2])
    middle = float(curves[0][2].split(",")[1])
    point = drawn.points["one"]["Good"][2]
    assert (middle - high) / (low - high) == pytest.approx(
        (point.high - point.value) / (point.high - point.low), abs=0.03
    )
    texts = [(element.text or "", element.get("x")) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    words = [text for text, _ in texts]
    by_steps, by_time = (
        words.index(f"MRR@10 fine-tuning, by {unit} of pre-training") for unit in ("steps", "CPU seconds")
    )
    assert curves[0][2].split(",")[0] == dict(texts[by_steps:by_time])["400"]
    assert curves[2][2].split(",")[0] == dict(texts[by_time:])["200"]
    marks = {(mark.get("cx"), mark.get("cy")) for mark in root.iter("{http://www.w3.org/2000/svg}circle")}
    assert marks == {tuple(point.split(",")) for curve in curves for point in curve}


def test_the_page_has_a_line_for_each_point(tmp_path: Path) -> None:
    wanted = with_curves(tmp_path)

    built = documents(wanted, tmp_path)

    page = built[RESULTS_PAGE]
    drawn = drawn_curves(wanted, tmp_path)
    assert drawn is not None
    point = drawn.points["one"]["Good"][2]
    assert f"| Good | 400 | 3 min 20 s | {point.value:.3f} [{point.low:.3f}, {point.high:.3f}] | 3 |" in page
    assert f"images/{FIGURE}" in page
    assert f"(docs/images/{FIGURE})" in built[README]
    assert IMAGES / FIGURE in built
    [table] = [
        part for part in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE) if part.startswith("| system | steps |")
    ]
    assert len(table.splitlines()) == 2 + 5
    assert IMAGES / FIGURE not in documents(study(), tmp_path)


def test_curves_need_their_runs_and_rows() -> None:
    wanted = study(curves=CURVES | {"seeds": [1, 2], "folds": [3, 4, 5], "own_steps": 400})
    assert wanted.curves is not None

    runs = curve_runs(wanted.curves)
    assert len(runs) == len(set(runs)) == 2 * 3 * (1 + 2 * 2)
    assert runs[:4] == [*(Trial("made/none", 1, fold) for fold in (3, 4, 5)), Trial("made/good", 1, 3, 100)]
    assert Trial("made/plain", 2, 5) in runs  # the recipe's own number of steps is no change
    assert runs[3].changes[-1] == "pretrain.steps=100"
    assert runs[3].folder(Path("results")) == Path("results/good/steps-100/fold-3/seed-1")
    assert measured_rows(wanted, "made/none") == {"start": ["MRR@10"]}
    with pytest.raises(ValueError, match="curves: folds: expected different folds"):
        study(curves=CURVES | {"folds": [1, 2, 1]})
    with pytest.raises(ValueError, match="curves: without: expected a system for each of the rows one"):
        study(curves=CURVES | {"without": {}})


def test_seeds_without_a_run_in_every_fold_are_not_drawn(tmp_path: Path) -> None:
    wanted = study(curves=CURVES | {"folds": [1, 2, 3]})
    for seed, fold in product(SEEDS, (1, 2, 3)):
        write(tmp_path, "none", seed, row="start", query_prefix=f"fold{fold}-", fold=fold, pretraining={})
    shutil.rmtree(tmp_path / "none" / "fold-2" / "seed-3")

    drawn = drawn_curves(wanted, tmp_path)

    assert drawn is not None
    [point] = drawn.points["one"][WITHOUT]
    assert (point.steps, point.runs) == (0, 6)


def test_runs_with_other_queries_are_refused(tmp_path: Path) -> None:
    wanted = with_curves(tmp_path)
    write(tmp_path, "good", 2, changed_steps=400, query_prefix="other-")

    with pytest.raises(UserError, match="one: runs of fold 0 have different queries"):
        drawn_curves(wanted, tmp_path)
