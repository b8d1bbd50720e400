"""The shipped claims: their numbers, their recipes, equal budgets, and what their arms share."""

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.plan.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import CLAIMS, shipped_recipes
from flows.study.check import check
from flows.study.claims import Claim, Study, load_study
from flows.study.order import claim_runs, curve_runs, measured_rows, needed
from flows.study.systems import check_distinct
from storage.errors import UserError
from storage.results.paper_results import FILE, as_fraction
from storage.results.study_runs import Trial
from storage.store import sources
from storage.store.store import Store
from tasks.evaluation.claim_verdicts import (
    minimum_detectable_effect,
    minimum_detectable_effect_in_folds,
    minimum_detectable_effect_in_turn,
)
from tasks.session import Done

STUDY = load_study()
assert STUDY.curves is not None
CURVES = STUDY.curves
QUALITY = [claim for claim in STUDY.claims if claim.metric]
ARMS = {arm.recipe for claim in STUDY.claims for arm in claim.arms.values()}
ARTICLES = 40
"""SQuAD's articles in all folds."""
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


def named(claim: Claim) -> str:
    return claim.name


def test_the_arms_are_there_and_every_recipe_of_the_folder_is_one() -> None:
    check(STUDY)

    assert len(STUDY.claims) >= 12
    drawn = {system.recipe for system in CURVES.systems.values()}
    assert {name for name in shipped_recipes() if name.startswith("study/")} == ARMS | drawn
    assert "study/claims" not in shipped_recipes()


@pytest.mark.parametrize("claim", QUALITY, ids=named)
def test_the_smallest_difference_is_what_drawn_studies_give(claim: Claim) -> None:
    seeds = len(claim.seeds)
    if claim.folds:
        folds, of_fold = len(claim.folds), ARTICLES // len(claim.folds)
        expected = (
            minimum_detectable_effect_in_turn(folds, of_fold, STUDY.family)
            if claim.seeding == "in turn"
            else minimum_detectable_effect_in_folds(folds, of_fold, seeds, STUDY.family)
        )
    else:
        expected = minimum_detectable_effect(claim.metric or "", claim.queries, seeds, STUDY.family)

    assert claim.smallest == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("claim", STUDY.claims, ids=named)
def test_what_a_claim_says_is_printed_is(claim: Claim) -> None:
    tables = [f"Table {number}" for number in re.findall(r"\d", claim.source or "")]
    rows = [row for row in ROWS if row["paper"] == claim.paper and row["table"] in tables]
    of_paper = {as_fraction(row["value"], row["scale"]) for row in rows if row["metric"] == claim.printed_metric}

    for contrast in claim.contrasts:
        assert set(contrast.printed or []) <= of_paper, f"{claim.name}: {contrast.printed}"
    assert (claim.printed_metric is not None) == any(contrast.printed for contrast in claim.contrasts)


@cache
def recipe(name: str) -> Recipe[Any]:
    return load_recipe(name)[0]


def recipe_steps(name: str) -> int | None:
    pretrain = recipe(name).pretrain
    return pretrain and pretrain.steps


@pytest.mark.parametrize("claim", STUDY.claims, ids=named)
def test_the_arms_of_a_claim_have_equal_budgets(claim: Claim) -> None:
    recipes = {arm.recipe: recipe(arm.recipe) for arm in claim.arms.values()}
    pretraining = {
        recipe.pretrain and (recipe.pretrain.batch, recipe.pretrain.fit.learning_rate,
                           recipe.pretrain.objective.max_tokens) for recipe in recipes.values()
    }  # fmt: skip
    steps = {arm.steps or recipe_steps(arm.recipe) for arm in claim.arms.values()}
    backbones = {
        (recipe.backbone.weights, recipe.backbone.vocabulary, recipe.backbone.start, recipe.backbone.dropout)
        for recipe in recipes.values()
    }  # fmt: skip
    trainings = set()
    for arm in claim.arms.values():
        for round_ in recipes[arm.recipe].rounds:
            if arm.row and (arm.row == round_.name or arm.row.startswith(f"{round_.name}_")) and round_.train:
                training = round_.train
                trainings.add(
                    (training.steps, training.batch_queries, training.passages_per_query, training.passage_max_tokens)
                )

    assert len(pretraining) == 1
    assert (len(steps) == 1) == (claim.name != "equal_cost")
    assert len(backbones) == 1
    assert len(trainings) <= 1


def test_an_arm_without_pretraining_is_marked() -> None:
    assert CURVES.without
    for arm in [*(arm for claim in STUDY.claims for arm in claim.arms.values()), *CURVES.without.values()]:
        starts = {round_.name: round_.start for round_ in recipe(arm.recipe).rounds}
        assert arm.pretrained == (starts.get(arm.row or "") != "backbone"), arm


def steps(name: str, seed: int, fold: int, folder: Path) -> dict[str, Done]:
    changes = [*Trial(name, seed, fold).changes, "dataset.path=nowhere", "backbone.weights=nobody/nothing"]
    changed, path = load_recipe(name, changes)
    with sources.assuming_present():
        return planned(changed, path.stem, Store(folder)).done


def stages(one: dict[str, Done], other: dict[str, Done]) -> set[str]:
    """The names of the stages that both plans share."""
    return {step.split("/")[0] for step in one if step in other}


def test_a_seed_pretrains_once_for_all_folds_and_a_fold_generates_once_for_all_seeds(tmp_path: Path) -> None:
    for name in sorted({arm.recipe for claim in STUDY.claims if claim.folds for arm in claim.arms.values()}):
        here = steps(name, 11, 1, tmp_path)
        assert ("pretrain" in stages(here, steps(name, 11, 2, tmp_path))) == (name != "study/cot_mae_query")
        assert "train" not in stages(here, steps(name, 11, 2, tmp_path))
        assert not {"pretrain", "train"} & stages(here, steps(name, 12, 1, tmp_path))
        assert {"search", "label_passages"} <= stages(here, steps(name, 12, 1, tmp_path))
    here, other = (steps("study/cot_mae_query", seed, 1, tmp_path) for seed in (11, 12))
    assert {"train_generator", "generate_queries"} <= stages(here, other)


def test_systems_share_a_pretraining_where_they_have_one(tmp_path: Path) -> None:
    retro_mae = steps("study/retro_mae", 11, 1, tmp_path)
    for name in ("came", "came_standardised", "came_independent", "hybrid", "retro_mae_duplex"):
        assert "pretrain" in stages(retro_mae, steps(f"study/{name}", 11, 3, tmp_path))
    control, rounds = (steps(f"study/{name}", 11, 1, tmp_path) for name in ("masked_lm", "masked_lm_rounds"))
    assert {"reduce_vocabulary", "pretrain", "train", "mine"} <= stages(control, rounds)


def test_runs_are_ordered_by_blocks_and_in_these_by_seed_or_fold() -> None:
    order, claims = needed(STUDY), {claim.name: claim for claim in STUDY.claims}
    assert len(set(order)) == len(order)
    assert set(order) == {
        *(trial for claim in STUDY.claims for trial in claim_runs(claim)), *curve_runs(CURVES)
    }  # fmt: skip
    start = 0
    for block in STUDY.order:
        own = {trial for name in block.claims for trial in claim_runs(claims[name])} - set(order[:start])
        here = order[start : start + len(own)]
        assert set(here) == own
        keys = [trial.seed if block.first == "seed" else trial.fold or 0 for trial in here]
        assert keys == sorted(keys)
        start += len(own)
    assert [(trial.recipe, trial.fold) for trial in order[:5]] == [("study/masked_lm", fold) for fold in range(1, 6)]
    assert needed(STUDY, ["duplex"]) == claim_runs(claims["duplex"])
    assert needed(STUDY, ["curves"]) == curve_runs(CURVES)


def test_what_is_kept_of_a_recipe_is_what_claims_and_curves_need() -> None:
    assert measured_rows(STUDY, "study/masked_lm_rounds") == {
        "start": ["MRR@10"], "few": ["recall@10"], "retriever_2": ["MRR@10"], "retriever_1": ["MRR@10"],
        "start_zero_shot": ["MRR@10"],
    }  # fmt: skip
    assert measured_rows(STUDY, "study/masked_lm_tokens") == {"zero_shot": ["MRR@10"], "retriever_1": ["MRR@10"]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arm: cpdae, than: masked_lm, printed", "arm: cpdea, than: masked_lm, printed", "'cpdea' is none of the arms"),
        ("    metric: recall@10\n", "    metric: null\n", "expected metric and smallest"),
        ("row: few}", "row: null}", "expected a row of each arm"),
        ("paper: CPDAE", "paper: CPDEA", "paper: expected one of Query-as-context"),
        ("printed_metric: R@1000", "printed_metric: null", "numbers are printed; expected printed_metric"),
        ("name: specialised", "name: experts", "the name 'experts' is given twice"),
        ("statement:", "statment:", r"statment: unknown key; did you mean statement\?"),
        ("row: few}", "row: fewer}", "study/cpdae.yaml has no row 'fewer'; it has bm25"),
        ("    metric: recall@10\n", "    metric: recall@11\n", "does not measure recall@11"),
        ("seeds: [11, 12, 13, 14, 15]", "seeds: [11, 12]", "seeds: expected 3 or more with folds, found 2"),
        ("folds: [1, 2, 3, 4, 5]", "folds: [1, 2]", "folds: List should have at least 3 items"),
        ("claims: [equal_cost]", "claims: [duplex]", "order: expected each claim once"),
        (
            "    seeding: in turn",
            "    seeding: by turns",
            "seeding: Input should be 'every fold' or 'in turn', found 'by turns'",
        ),
        ("    folds: [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]\n", "", "seeds in turn: expected as many folds"),
        ("18, 19, 20]", "18, 19]", "seeds in turn: expected as many folds for each of 5 seeds"),
        (
            "          seeds: [31, 32, 33, 34, 35]",
            "          seeds: [31, 32, 33]",
            "second: expected as many folds for each of 3",
        ),
        (
            "          seeds: [31,",
            "          seeds: [11,",
            "second: expected other seeds and folds than those of the claim",
        ),
        (
            "          folds: [21,",
            "          folds: [1,",
            "second: expected other seeds and folds than those of the claim",
        ),
        ("own_steps: 2000", "own_steps: 200", "expected pre-training of own_steps=200 steps"),
    ],
)
def test_errors_in_claims_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = CLAIMS.read_text()
    assert old in text
    (tmp_path / "claims.yaml").write_text(text.replace(old, new, 1))

    with pytest.raises(UserError, match=message):
        check(load_study(tmp_path / "claims.yaml"))


def test_every_seed_is_a_run_in_every_fold() -> None:
    claim = STUDY.claims[0].model_copy(update={"folds": [1, 2, 5], "seeds": [1, 2, 3]})

    trials = claim.trials(claim.arms["cpdae"])
    assert [(trial.fold, trial.seed) for trial in trials] == [(fold, seed) for fold in (1, 2, 5) for seed in (1, 2, 3)]
    changed, _ = load_recipe("study/cpdae", trials[8].changes)
    assert (changed.seed, changed.dataset.train_split, changed.dataset.eval_splits) == (
        3,
        "fold_5_train",
        ["fold_5_dev"],
    )


def test_seeds_take_turns_over_the_folds() -> None:
    [claim] = STUDY.chosen(["hybrid"])

    trials = claim.trials(claim.arms["hybrid"])
    assert [(trial.fold, trial.seed) for trial in trials] == [
        (fold, seed) for fold, seed in zip(range(11, 21), [21, 22, 23, 24, 25] * 2, strict=True)
    ]


def test_a_second_look_has_runs_of_its_own() -> None:
    [claim] = STUDY.chosen(["duplex"])
    [comparison] = claim.contrasts
    assert comparison.second is not None

    second = comparison.second.trials(claim.arms["dup_mae"])
    assert [(trial.fold, trial.seed) for trial in second] == [
        (fold, seed) for fold, seed in zip(range(21, 41), [31, 32, 33, 34, 35] * 4, strict=True)
    ]
    assert set(second) < set(claim.all_trials)
    assert len(claim.all_trials) == 60


def test_a_claim_about_costs_has_no_second_look_and_others_have_one() -> None:
    content = STUDY.model_dump()
    claims = {claim["name"]: claim for claim in content["claims"]}
    second = claims["duplex"]["contrasts"][0]["second"]

    claims["cheaper_steps"]["contrasts"][0]["second"] = second
    with pytest.raises(ValueError, match="cheaper_steps: second: expected one second look, of a claim about quality"):
        Study.model_validate(content)
    claims["cheaper_steps"]["contrasts"][0]["second"] = None
    claims["experts"]["contrasts"][1]["second"] = second | {"seeds": [41, 42, 43, 44]}
    with pytest.raises(ValueError, match="experts: second: expected one second look"):
        Study.model_validate(content)


def test_a_claim_is_chosen_by_name() -> None:
    assert [claim.name for claim in STUDY.chosen(["experts"])] == ["experts"]
    with pytest.raises(UserError, match=r"--only expert: .* did you mean experts\?"):
        STUDY.chosen(["expert"])


def test_only_folds_in_the_papers_metric_bound_an_effect() -> None:
    [claim] = STUDY.chosen(["few_shot"])
    [comparison] = claim.contrasts

    assert comparison.printed == [0.708, 0.636]
    assert claim.bounded_effect(comparison) is None
    of_one_metric = claim.model_copy(update={"metric": claim.printed_metric})
    assert of_one_metric.bounded_effect(comparison) == pytest.approx(0.072)
    assert of_one_metric.model_copy(update={"folds": None}).bounded_effect(comparison) is None


def test_a_fold_or_seed_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a claim: folds: expected different folds, found \[1, 1\]"):
        check_distinct("a claim", [1, 2], [1, 1])
    with pytest.raises(ValueError, match=r"a claim: seeds: expected different seeds, found \[2, 2\]"):
        check_distinct("a claim", [2, 2], None)
