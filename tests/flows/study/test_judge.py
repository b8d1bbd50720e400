"""From what is kept of runs to verdicts, and to the page about them."""

import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.documentation.results import IMAGES, README, RESULTS_PAGE, documents
from flows.study.claims import Study
from flows.study.judge import judge_claims
from storage.errors import UserError
from storage.results.study_runs import read_study_runs
from tasks.evaluation.claim_verdicts import CostComparison, SystemComparison
from tasks.evaluation.seeds_by_queries import mean_difference
from tasks.report.page.study_markdown import FOREST, pictures, runs_page, study_part
from tasks.report.page.svg_charts import RIGHT, WIDTH, Difference, forest
from tests.studies import BETTER, QUERIES, results, study, write


def test_each_claim_gets_the_verdict_that_its_runs_give(tmp_path: Path) -> None:
    helps, unknown, cheap = judge_claims(study(), results(tmp_path))

    assert [claim.verdict for claim in (helps, unknown, cheap)] == ["supported", "not run", "supported"]
    [contrast], [missing], [cost] = helps.contrasts, unknown.contrasts, cheap.contrasts
    assert isinstance(contrast, SystemComparison)
    assert contrast.difference is not None
    assert contrast.difference.value == pytest.approx(BETTER, abs=0.02)
    assert (contrast.difference.seeds, contrast.difference.queries) == (2, QUERIES)
    by_hand = [pq.read_table(tmp_path / name / "seed-2" / "scores.parquet")["value"].to_numpy().mean()
               for name in ("good", "plain")]  # fmt: skip
    assert contrast.by_seed[1] == pytest.approx(by_hand[0] - by_hand[1])
    assert contrast.p is not None
    assert contrast.p_holm == pytest.approx(
        2 * contrast.p
    )  # including comparisons that were not run; costs are not in the family
    assert missing.missing == ["absent (seed 1, seed 2)"]
    assert isinstance(cost, CostComparison)
    assert cost.ratio == pytest.approx((0.51 / 2.01 * 0.52 / 2.02) ** 0.5)


def test_a_run_that_was_cut_off_has_no_cost(tmp_path: Path) -> None:
    write(results(tmp_path), "good", 2, pretraining={"steps": 1.0, "tokens": 1.0, "flops": 1.0})

    [_, _, cheap] = judge_claims(study(), tmp_path)

    assert cheap.verdict == "not run"
    assert cheap.contrasts[0].missing == ["good (seed 2)"]


def folded(folder: Path, **changed: Any) -> Study:
    """The first claim with a cross-validation: three seeds in each of three folds, whose queries are others."""
    numbers = [1, 2, 3]
    first = study().claims[0].model_dump() | {
        "collection": "toy", "queries": QUERIES * len(numbers), "seeds": numbers, "folds": numbers,
    }  # fmt: skip
    for name, fold, seed in product(("good", "plain"), numbers, numbers):
        facts = {"fold": fold, "collection": f"toy/fold_{fold}_dev"} | changed
        write(folder, name, seed, query_prefix=f"fold{fold}-", **facts)
    return study(claims=[first])


def test_folds_are_compared_by_the_means_of_articles(tmp_path: Path) -> None:
    [claim] = judge_claims(folded(tmp_path), tmp_path)

    means = {}
    for name, fold, seed in product(("good", "plain"), (1, 2, 3), (1, 2, 3)):
        table = pq.read_table(tmp_path / name / f"fold-{fold}" / f"seed-{seed}" / "scores.parquet").to_pandas()
        means[name, fold, seed] = table.groupby("cluster")["value"].mean().to_numpy()
    differences = np.array([
        [means["good", fold, seed] - means["plain", fold, seed] for seed in (1, 2, 3)] for fold in (1, 2, 3)
    ])  # fmt: skip
    [contrast] = claim.contrasts
    assert isinstance(contrast, SystemComparison)
    assert contrast.difference is not None
    expected = mean_difference(differences)
    assert contrast.difference.value == pytest.approx(expected.value)
    assert contrast.difference.error == pytest.approx(expected.error)
    assert contrast.difference.degrees == pytest.approx(expected.degrees)
    assert (contrast.difference.seeds, contrast.difference.queries) == (9, 12)
    assert contrast.by_seed == pytest.approx(differences.mean(axis=(0, 2)))
    assert claim.verdict == "supported"
    page = study_part("A study", "Made up.", [claim])
    assert "| 120 × 9 in 3 folds |" in page
    assert "| seed 1 | seed 2 | seed 3 | mean |" in page
    command = "--set seed=3 --set dataset.train_split=fold_2_train --set dataset.eval_splits=[fold_2_dev]"
    runs = runs_page(list(read_study_runs(tmp_path)))
    assert f"| `pretrieve reproduce made/good {command}` |" in runs
    assert "[good/fold-2/seed-3](../results/study/good/fold-2/seed-3)" in runs


def test_seeds_that_take_turns_are_one_run_of_each_fold(tmp_path: Path) -> None:
    first = study().claims[0].model_dump() | {
        "collection": "toy", "queries": QUERIES * 6, "seeds": [1, 2, 3], "folds": [1, 2, 3, 4, 5, 6],
        "seeding": "in turn",
    }  # fmt: skip
    for name, fold in product(("good", "plain"), range(1, 7)):
        facts = {"fold": fold, "collection": f"toy/fold_{fold}_dev"}
        write(tmp_path, name, [3, 1, 2][fold % 3], query_prefix=f"fold{fold}-", **facts)

    [claim] = judge_claims(study(claims=[first]), tmp_path)

    means = {
        (name, fold): pq.read_table(tmp_path / name / f"fold-{fold}" / f"seed-{[3, 1, 2][fold % 3]}" / "scores.parquet")
        .to_pandas().groupby("cluster")["value"].mean().to_numpy()
        for name, fold in product(("good", "plain"), range(1, 7))
    }  # fmt: skip
    differences = np.array([[means["good", fold] - means["plain", fold]] for fold in range(1, 7)])
    [contrast] = claim.contrasts
    assert isinstance(contrast, SystemComparison)
    assert contrast.difference is not None
    expected = mean_difference(differences)
    assert vars(contrast.difference) == pytest.approx(vars(expected))
    by_fold = differences.mean(axis=(1, 2))
    assert contrast.by_seed == pytest.approx((by_fold[:3] + by_fold[3:]) / 2)
    page = study_part("A study", "Made up.", [claim])
    assert "| 240 × 6 in 6 folds |" in page
    assert "| seed 1, folds 1 and 4 | seed 2, folds 2 and 5 | seed 3, folds 3 and 6 | mean |" in page


def test_a_second_look_counts_once_all_of_its_runs_are_kept(tmp_path: Path) -> None:
    numbers, names = [1, 2, 3], [f"article-{number:02}" for number in range(12)]
    second = {"seeds": [4, 5, 6], "folds": [4, 5, 6]}
    claim = study().claims[0].model_dump() | {
        "collection": "toy", "queries": QUERIES * 3, "seeds": numbers, "folds": numbers,
        "contrasts": [{"arm": "good", "than": "plain", "printed": [0.4, 0.3], "second": second}],
    }  # fmt: skip
    runs = [(fold, seed) for fold, seed in product(numbers, numbers)] + [(4, 4), (5, 5), (6, 6)]
    for name, (fold, seed) in product(("good", "plain"), runs):
        own = names[4 * fold - 4 : 4 * fold] if fold < 4 else names[fold - 4 :: 3]
        facts = {"fold": fold, "collection": f"toy/fold_{fold}_dev"}
        write(tmp_path, name, seed, query_prefix=f"fold{fold}-", articles=own, **facts)

    [complete] = judge_claims(study(claims=[claim]), tmp_path)
    for name in ("good", "plain"):
        facts = {"fold": 6, "collection": "toy/fold_6_dev"}
        write(tmp_path, name, 6, query_prefix="fold6-", articles=["others", *names[5::3]], **facts)
    with pytest.raises(UserError, match="helps: good and plain: the second look has other articles than the first"):
        judge_claims(study(claims=[claim]), tmp_path)
    shutil.rmtree(tmp_path / "plain" / "fold-6" / "seed-6")
    [waiting] = judge_claims(study(claims=[claim]), tmp_path)

    [both], [first] = complete.contrasts, waiting.contrasts
    assert isinstance(both, SystemComparison)
    assert isinstance(first, SystemComparison)
    assert (both.second_runs, first.second_runs) == ((6, 6), (5, 6))
    assert [mean.seeds for mean in both.of_looks] == [9, 3]
    assert both.by_seed[:3] == first.by_seed
    values = {
        name: [
            pq.read_table(tmp_path / name / f"fold-{k}" / f"seed-{k}" / "scores.parquet")["value"].to_numpy().mean()
            for k in (4, 5)
        ]
        for name in ("good", "plain")
    }
    assert both.by_seed[3:5] == pytest.approx(np.subtract(values["good"], values["plain"]))
    assert both.difference is not None
    assert both.difference.value == pytest.approx((both.of_looks[0].value + both.of_looks[1].value) / 2)
    assert first.p_holm == pytest.approx(2 * (first.p or 0))
    page, early = (study_part("A study", "Made up.", [claim]) for claim in (complete, waiting))
    assert "| 120 × 9 in 3 folds and 3 in 3 |" in page
    assert "| mean | second look, mean | pre-training steps |" in page
    assert "both looks together (first +0.2" in page
    assert "| 120 × 9 in 3 folds |" in early
    assert "only the first look, since 5 of 6 runs of the second are kept" in early
    assert "second look, mean" not in early


def test_folds_of_other_data_are_refused_and_missing_ones_are_counted(tmp_path: Path) -> None:
    cross_validation = folded(tmp_path)
    shutil.rmtree(tmp_path / "plain" / "fold-2" / "seed-3")

    [claim] = judge_claims(cross_validation, tmp_path)
    assert claim.contrasts[0].missing == ["plain (seed 3 in fold 2)"]
    assert claim.contrasts[0].runs == (17, 18)
    assert claim.verdict == "not run"
    page = study_part("A study", "Made up.", [claim])
    assert "| 17 of 18 runs |" in page

    folded(tmp_path, collection="toy/dev")
    with pytest.raises(UserError, match="helps needs the 120 queries of toy/fold_1_dev; found 40 of toy/dev"):
        judge_claims(cross_validation, tmp_path)


def test_runs_on_other_data_are_refused(tmp_path: Path) -> None:
    folder = write(results(tmp_path), "good", 2, collection="toy/test")

    with pytest.raises(UserError, match=rf"{folder}: helps needs the 40 queries of toy/dev; found 40 of toy/test"):
        judge_claims(study(), tmp_path)


def test_runs_on_other_queries_are_refused(tmp_path: Path) -> None:
    write(results(tmp_path), "good", 2, query_prefix="r")

    with pytest.raises(UserError, match="helps: good and plain were measured on different queries"):
        judge_claims(study(), tmp_path)


def test_the_page_tells_everything_and_what_is_missing(tmp_path: Path) -> None:
    claims = judge_claims(study(), results(tmp_path))

    page = study_part("A study", "Made up.", claims)

    [contrast] = claims[0].contrasts
    assert isinstance(contrast, SystemComparison)
    assert contrast.difference is not None
    assert "Verdicts of 3 claims: 2 supported, 1 without all of their runs." in page
    line = next(line for line in page.splitlines() if line.startswith("| It helps."))
    assert "| CAME, Table 2 | +0.100 MRR@10 |" in line
    assert f"+{contrast.difference.value:.3f} [" in line
    assert "| < 0.0001 | **supported** ([note](#helps)) |" in line
    seeds = f"over the means of the seeds p = {contrast.p_seeds:.2g}"
    assert f"; p < 0.0001, randomisation test p < 0.0001, {seeds}, Holm p < 0.0001;" in page
    even = [replace(contrast, p=0.031, p_randomisation=0.2, p_holm=0.25, p_seeds=None)]
    less = study_part("A study", "Made up.", [replace(claims[0], contrasts=even), *claims[1:]])
    assert "| 0.25 |" in less
    assert "; p = 0.031, randomisation test p = 0.20, over the means of the seeds p –, Holm p = 0.25;" in less
    assert line.endswith("| **supported** ([note](#helps)) | 40 × 2 |")
    assert "| Nobody knows. `absent` − `plain` | CAME, Table 2 | – | – | – | 2 of 4 runs | 40 × 2 |" in page
    assert "In <another> way." in page
    assert "| `good` | `good` | 0.5100 | 0.5200 | 0.5150 | 10 | 640 | 1.00e+09 |" in page
    [good, plain] = claims[2].arms
    without = replace(claims[2], arms=[replace(good, pretrained=False), plain])
    assert "| `good` | `good` | 0.5100 | 0.5200 | 0.5150 | – | – | – |" in study_part("A study", "", [without])
    assert page == study_part("A study", "Made up.", judge_claims(study(), tmp_path))


def test_the_list_of_runs_has_their_commands_costs_and_reports(tmp_path: Path) -> None:
    runs = list(read_study_runs(results(tmp_path)))
    page = runs_page(runs)

    assert (
        "| `pretrieve reproduce made/good --set seed=2` | 2026-01-02 | 2, 1 | 1 min 30 s | a processor, 2 cores |"
        in page
    )
    assert "made/good --set seed=1` | 2026-01-02 | 2, 2 | 3 min 0 s |" in page  # what all share counts for the first
    assert "`report-plain-1`" in page
    assert "torch 2" in page
    claims = judge_claims(study(), tmp_path)
    assert "\n4 runs took 7 min 30 s of CPU time. [Their list]" in study_part("A study", "", claims, runs=runs)


def test_a_table_has_as_many_cells_in_every_line(tmp_path: Path) -> None:
    page = study_part("A study", "Made up.", judge_claims(study(), results(tmp_path)))

    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_pictures_are_svg_without_script_for_light_and_dark(tmp_path: Path) -> None:
    drawn = pictures(judge_claims(study(), results(tmp_path)))

    assert set(drawn) == {FOREST, "study_helps.svg", "study_unknown.svg", "study_cheap.svg"}
    for text in drawn.values():
        root = ET.fromstring(text)
        width, height = (float(element) for element in root.get("viewBox", "").split()[2:])
        assert width <= 480  # a phone shows its words as they are
        assert "prefers-color-scheme: dark" in text
        assert not re.search(r"<script|http(?!://www\.w3\.org/2000/svg)", text)
        for element in root.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert 0 <= float(element.get(name, "0")) <= width
            for name in ("y", "y1", "y2", "cy"):
                assert 0 <= float(element.get(name, "0")) <= height
    assert drawn[FOREST].count('class="supported"') == 1
    assert "helps: good − plain" in drawn[FOREST]


def test_an_interval_is_drawn_at_its_numbers(tmp_path: Path) -> None:
    helps, *_ = judge_claims(study(), results(tmp_path))
    [contrast] = helps.contrasts
    assert isinstance(contrast, SystemComparison)
    assert contrast.difference is not None
    near = replace(contrast, difference=replace(contrast.difference, value=0.08), low=-0.02, high=0.11)
    root = ET.fromstring(pictures([replace(helps, contrasts=[near])])[FOREST])
    space = "{http://www.w3.org/2000/svg}"
    group = next(element for element in root.iter(f"{space}g"))
    low, value = float(group[1].get("x1", "")), float(group[2].get("cx", ""))
    zero = next(float(element.get("x1", "")) for element in root.iter(f"{space}line") if element.get("class") == "zero")
    printed = next(
        float(element.get("cx", "")) for element in root.iter(f"{space}circle") if element.get("class") == "printed"
    )

    scale = (printed - zero) / 0.1  # the paper's difference
    assert (value - zero) / scale == pytest.approx(0.08, abs=0.002)
    assert (low - zero) / scale == pytest.approx(-0.02, abs=0.002)


def test_a_far_value_is_drawn_at_the_edge_with_its_number() -> None:
    near, far = (
        Difference("near", 0.02, 0.01, 0.03, None, "supported"),
        Difference("far", 0.4, 0.3, 0.5, 0.1, "supported"),
    )
    root = ET.fromstring(forest("Two", [near, far]))
    alone = ET.fromstring(forest("One", [replace(near, high=0.2)]))
    space = "{http://www.w3.org/2000/svg}"

    words = [element.text for element in root.iter(f"{space}text")]
    assert "near" in words
    assert "far, +0.400" in words
    ours = [float(element.get("cx", "")) for element in root.iter(f"{space}circle") if element.get("class") is None]
    assert ours[1] == WIDTH - RIGHT
    assert ours[0] == float(next(alone.iter(f"{space}circle")).get("cx", ""))  # one far value squeezes no other


def test_the_documents_are_the_page_the_readme_and_the_pictures(tmp_path: Path) -> None:
    advice = {"claim": "helps", "arm": "good", "than": "plain", "asks": "Does it help?", "supported": "Take it.",
              "contradicted": "Leave it.", "undecided": "Toss a coin."}  # fmt: skip
    answered = study(question="What to do?", advice=[advice], dropped=[{"statement": "It flies.", "reason": "No."}])

    built = documents(answered, results(tmp_path))

    assert {IMAGES / FOREST, README, RESULTS_PAGE} < set(built)
    page = built[RESULTS_PAGE]
    result = r"Take it\. Difference: \+0\.2\d\d \[.*\] MRR@10, supported\."
    assert re.search(rf"\*\*Question\.\*\* What to do\?\n\n\*\*Answer\.\*\* {result}\n", page)
    assert page.index("## In short") < page.index("## A study") < page.index("- It flies. No.")
    verdicts = "Verdicts of 3 claims: 2 supported, 1 without all of their runs"
    assert f"\n{verdicts} ([study](docs/results.md) of " in built[README]
    empty = documents(answered, tmp_path / "nothing")
    assert "**Answer.** Not known yet: no comparison has all of its runs.\n" in empty[RESULTS_PAGE]
    assert "- Does it help? 0 of 4 runs are kept, so there is no answer yet." in empty[RESULTS_PAGE]
    assert "\nVerdicts of 3 claims: 3 without all of their runs ([study](docs/results.md) of " in empty[README]
    assert "3 without all of their runs" in empty[RESULTS_PAGE]
