"""The shipped claims: their numbers, their recipes, equal budgets, and what their arms share."""

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.plan import planned
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import CLAIMS, shipped_recipes
from flows.study.claims import Claim, check, check_folds, load_study, measured_rows, runs
from storage.errors import UserError
from storage.results.paper_results import FILE, as_fraction
from storage.results.study_runs import Trial
from storage.store import sources
from storage.store.store import Store
from tasks.evaluation.claim_verdicts import minimum_detectable_effect
from tasks.session import Done

STUDY = load_study()
QUALITY = [claim for claim in STUDY.claims if claim.metric]
RECIPES = sorted({arm.recipe for claim in STUDY.claims for arm in claim.arms.values()})
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


def named(claim: Claim) -> str:
    return claim.name


def test_the_arms_are_there_and_every_recipe_of_the_folder_is_one() -> None:
    check(STUDY)

    assert len(STUDY.claims) >= 12
    assert [name for name in shipped_recipes() if name.startswith("study/")] == RECIPES
    assert "study/claims" not in shipped_recipes()


@pytest.mark.parametrize("claim", QUALITY, ids=named)
def test_the_smallest_difference_is_what_drawn_studies_give(claim: Claim) -> None:
    expected = minimum_detectable_effect(claim.metric or "", claim.queries, len(claim.seeds), STUDY.family)

    assert claim.smallest == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("claim", STUDY.claims, ids=named)
def test_what_a_claim_says_is_printed_is(claim: Claim) -> None:
    tables = [f"Table {number}" for number in re.findall(r"\d", claim.source)]
    rows = [row for row in ROWS if row["paper"] == claim.paper and row["table"] in tables]
    of_paper = {as_fraction(row["value"], row["scale"]) for row in rows if row["metric"] == claim.printed_metric}

    for contrast in claim.contrasts:
        assert set(contrast.printed or []) <= of_paper, f"{claim.name}: {contrast.printed}"
    assert (claim.printed_metric is not None) == any(contrast.printed for contrast in claim.contrasts)


def test_the_largest_effects_that_are_printed_come_first() -> None:
    effects = [max(contrast.printed[0] - contrast.printed[1] for contrast in claim.contrasts if contrast.printed)
               for claim in STUDY.claims if claim.printed_metric]  # fmt: skip

    assert effects == sorted(effects, reverse=True)


@cache
def recipe(name: str) -> Recipe[Any]:
    return load_recipe(name)[0]


@pytest.mark.parametrize("claim", STUDY.claims, ids=named)
def test_the_arms_of_a_claim_have_equal_budgets(claim: Claim) -> None:
    recipes = {arm.recipe: recipe(arm.recipe) for arm in claim.arms.values()}
    pretraining = {
        recipe.pretrain and (recipe.pretrain.steps, recipe.pretrain.batch, recipe.pretrain.fit.learning_rate,
                           recipe.pretrain.objective.max_tokens) for recipe in recipes.values()
    }  # fmt: skip
    backbones = {
        (recipe.backbone.weights, recipe.backbone.start, recipe.backbone.dropout) for recipe in recipes.values()
    }
    trainings = set()
    for arm in claim.arms.values():
        for round_ in recipes[arm.recipe].rounds:
            if arm.row and (arm.row == round_.name or arm.row.startswith(f"{round_.name}_")) and round_.train:
                training = round_.train
                trainings.add(
                    (training.steps, training.batch_queries, training.passages_per_query, training.passage_max_tokens)
                )

    assert len(pretraining) == 1
    assert len(backbones) == 1
    assert len(trainings) <= 1


def steps(name: str, seed: int, folder: Path) -> dict[str, Done]:
    changed, path = load_recipe(name, [f"seed={seed}", "dataset.path=nowhere", "backbone.weights=nobody/nothing"])
    with sources.assuming_present():
        return planned(changed, path.stem, Store(folder)).done


def test_arms_share_what_is_equal_and_a_seed_changes_no_collection_and_no_pseudo_query(tmp_path: Path) -> None:
    shared = ("ingest_corpus", "split_corpus", "index", "label_passages", "train_generator", "generate_queries",
              "query_quality")  # fmt: skip
    one, other = (steps("study/cot_mae_query", seed, tmp_path) for seed in (1, 2))
    fixed = {step for step in one if step.startswith(shared) and not one[step].round}
    assert len(fixed) > 8
    assert fixed <= set(other)
    assert not {step for step in one if step.startswith(("pretrain/", "train/"))} & set(other)

    for names in (("study/cot_mae_query", "study/co_condenser_query", "study/cot_mote_siamese"),
                  ("study/masked_lm", "study/cpdae", "study/retro_mae", "study/dup_mae", "study/came")):  # fmt: skip
        plans = [steps(name, 1, tmp_path) for name in names]
        own = [{step.split("/")[0] for step in plan if all(step in other for other in plans)} for plan in plans]
        assert all({"initialise", "split_corpus", "label_passages", "mine"} <= stages for stages in own)
    assert {"train_generator", "generate_queries", "pair_contexts"} <= {
        step.split("/")[0] for step in set(one) & set(steps("study/cot_mote", 1, tmp_path))
    }


def test_a_claims_seeds_come_before_the_next_claim_and_a_run_stands_once() -> None:
    order = list(runs(STUDY.claims))
    first = [Trial(arm.recipe, seed) for seed in STUDY.claims[0].seeds for arm in STUDY.claims[0].arms.values()]

    assert order[: len(first)] == first
    assert len(set(order)) == len(order)
    assert measured_rows(STUDY, "study/masked_lm") == {
        "few": ["recall@10"],
        "retriever_1": ["MRR@10"],
        "retriever_2": ["MRR@10"],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arm: cpdae, than: masked_lm, printed", "arm: cpdea, than: masked_lm, printed", "'cpdea' is none of the arms"),
        ("    metric: recall@10\n", "    metric: null\n", "expected metric and smallest"),
        ("row: few}", "row: null}", "expected a row of each arm"),
        ("paper: CPDAE", "paper: CPDEA", "paper: expected one of Query-as-context"),
        ("printed_metric: R@1000", "printed_metric: null", "numbers are printed; expected printed_metric"),
        ("name: few_shot_random", "name: few_shot", "the name 'few_shot' stands twice"),
        ("statement:", "statment:", r"statment: unknown key; did you mean statement\?"),
        ("row: few}", "row: fewer}", "study/cpdae.yaml has no row 'fewer'; it has bm25"),
        ("    metric: recall@10\n", "    metric: recall@11\n", "does not measure recall@11"),
        (
            "seeds: [1, 2, 3]",
            "seeds: [1, 2, 3]\n    folds: [1, 2]",
            "as many for every fold, so a multiple of 2; found 3",
        ),
    ],
)
def test_errors_in_claims_are_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = CLAIMS.read_text()
    assert old in text
    (tmp_path / "claims.yaml").write_text(text.replace(old, new, 1))

    with pytest.raises(UserError, match=message):
        check(load_study(tmp_path / "claims.yaml"))


def test_seeds_are_dealt_to_folds_in_turn() -> None:
    claim = STUDY.claims[0].model_copy(update={"folds": [1, 2, 5], "seeds": [1, 2, 3, 4, 5, 6]})

    trials = claim.trials("study/cpdae")
    assert [(trial.fold, trial.seed) for trial in trials] == [(1, 1), (2, 2), (5, 3), (1, 4), (2, 5), (5, 6)]
    changed, _ = load_recipe("study/cpdae", trials[2].changes)
    assert (changed.seed, changed.dataset.train_split, changed.dataset.eval_splits) == (
        3,
        "fold_5_train",
        ["fold_5_dev"],
    )


def test_a_claim_is_chosen_by_name() -> None:
    assert [claim.name for claim in STUDY.chosen(["experts"])] == ["experts"]
    with pytest.raises(UserError, match=r"--only expert: .* did you mean experts\?"):
        STUDY.chosen(["expert"])


def test_only_folds_in_the_papers_metric_bound_an_effect() -> None:
    claim = STUDY.claims[0]
    [comparison] = claim.contrasts
    folds = {"folds": [1, 2, 3]}

    assert comparison.printed == [0.708, 0.636]
    assert claim.bounded_effect(comparison) is None
    assert claim.model_copy(update=folds).bounded_effect(comparison) is None
    of_one_metric = claim.model_copy(update=folds | {"metric": claim.printed_metric})
    assert of_one_metric.bounded_effect(comparison) == pytest.approx(0.072)


def test_a_fold_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"folds: expected different folds, found \[1, 1\]"):
        check_folds("a claim", [1, 2], [1, 1])
