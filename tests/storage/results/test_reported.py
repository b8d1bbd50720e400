"""A recipe's `reported`: each run names its row, and each number is what the row prints."""

import csv
from functools import cache
from typing import Any

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.shipped import shipped_recipes
from storage.errors import UserError
from storage.results.paper_results import BEIR_AVERAGE, FILE, paper_collection, row_values
from storage.results.reported import ReportedNumber, check_reported, parse_reported

LINES = {
    (line["paper"], line["table"], line["system"], line["variant"], line["dataset"].lower(), line["metric"]): line
    for line in csv.DictReader(FILE.read_text(encoding="utf-8").splitlines())
}
ROW = {"table": "Table 1", "system": "CoT-MAE", "variant": "w/ query-as-context (50K) - retriever 2"}
OF_PAPER = {"paper": "Query-as-context", "source": "Wu et al. 2022, table 1"}


@cache
def shipped(name: str) -> Recipe[Any]:
    """The recipe, read once for several tests."""
    return load_recipe(name)[0]


def printed(paper: str, metric: str) -> list[str]:
    """The paper's spellings of one of our metrics, derived without the code under test (decision 41)."""
    name, _, depth = metric.partition("@")
    if name == ("success" if paper in ("Query-as-context", "CoT-MoTE") else "recall"):
        return [f"R@{depth}", *(["R@1k"] if depth == "1000" else [])]
    return [f"Top-{depth} accuracy"] if name == "answer" else [metric]


@pytest.mark.parametrize("name", shipped_recipes())
def test_each_number_of_a_recipe_is_in_the_rows_that_its_run_names(name: str) -> None:
    """By a look-up of the file's lines that shares no code with the check of recipes."""
    recipe = shipped(name)
    reported = parse_reported(recipe.reported, recipe.headline.run)
    for run in reported.runs:
        if run.numbers:
            assert run.rows, f"{run.name}: numbers without a row"
            assert run.name in recipe.run_names()
        for number in run.numbers:
            split = number.split or recipe.dataset.eval_splits[0]
            collection = BEIR_AVERAGE if number.num_collections else paper_collection(recipe.dataset.reader, split)
            lines = [
                line
                for row in run.rows
                for metric in printed(row.paper, number.metric)
                if (line := LINES.get((row.paper, row.table, row.system, row.variant, collection.lower(), metric)))
            ]
            assert lines, number
            for line in lines:
                scale = 100 if line["scale"] == "percent" else 1
                assert number.value * scale == pytest.approx(float(line["value"]), abs=1e-9), number


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_has_each_number_of_its_rows_that_it_measures(name: str) -> None:
    recipe = shipped(name)
    splits = recipe.dataset.eval_splits
    for run in parse_reported(recipe.reported, recipe.headline.run).runs:
        keys = {number.key for number in run.numbers}
        for split in splits:
            for row in run.rows:
                metrics = set(row_values(row, paper_collection(recipe.dataset.reader, split)))
                expected = {m if split == splits[0] else f"{m} on {split}" for m in metrics}
                assert expected <= keys, f"{run.name}: {row} on {split}"
                assert metrics <= set(recipe.evaluate.metrics)


def test_runs_once_labelled_by_a_coinciding_value_name_their_own_rows() -> None:
    """Their values on one split equal those of COSTA, Condenser, SimLM, RetroMAE and the original coCondenser."""
    for recipe_name, run_name, variant in (
        ("cot_mae_query_as_context", "retriever_1", "w/ query-as-context (50K) - retriever 1"),
        ("cot_mae_50k", "retriever_1", "CoT-MAE (50K) - retriever 1 (reproduced baseline)"),
        ("cot_mae_50k", "retriever_2", "CoT-MAE (50K) - retriever 2 (reproduced baseline)"),
        ("co_condenser_query_as_context", "retriever_1", "w/ query-as-context (120K) - retriever 1"),
        ("co_condenser", "retriever_2", "coCondenser (120K) - retriever 2 (reproduced baseline)"),
    ):
        recipe = shipped(recipe_name)
        reported = parse_reported(recipe.reported, recipe.headline.run)
        (run,) = [run for run in reported.runs if run.name == run_name]
        table_1 = [row for row in run.rows if row.table == "Table 1"]
        assert [row.variant for row in table_1] == [variant]
        assert {row.system for row in run.rows} == {"CoT-MAE" if "cot_mae" in recipe_name else "coCondenser"}


def test_keys_are_a_metric_with_a_split_or_a_mean() -> None:
    reported = parse_reported({"source": "Table 1", "mean nDCG@10 of 14 sets": 0.456, "dense": {"nDCG@10 on dl19": 0.7},
                               "overlap": {"rank-biased overlap": "from 0.42 to 0.48"}}, "main")  # fmt: skip

    assert [number for run in reported.runs for number in run.numbers] == [
        ReportedNumber("dense", "nDCG@10 on dl19", "nDCG@10", "dl19", None, 0.7),
        ReportedNumber("main", "mean nDCG@10 of 14 sets", "nDCG@10", None, 14, 0.456),
    ]
    assert reported.paper is None
    assert all(run.rows == [] for run in reported.runs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"paper": "CoT-MAE"}, "reported.paper: expected one of Query-as-context, CoT-MoTE, CPDAE"),
        ({"dense": {"row": ROW}}, r"reported.dense.row: expected reported.paper, one of Query-as-context"),
        (OF_PAPER | {"row": ROW}, "reported.row: expected the row below the name of a run"),
        (OF_PAPER | {"dense": {"row": "Table 1"}}, "reported.dense.row: expected table and system, and variant"),
        (OF_PAPER | {"dense": {"row": ROW | {"line": 3}}}, "reported.dense.row: expected table and system"),
        (
            OF_PAPER | {"dense": {"row": ROW | {"variant": "w/ query-as-context (50K) - retriever 3"}}},
            r"Query-as-context has no row .*did you mean Table 1: CoT-MAE, w/ query-as-context \(50K\) - retriever",
        ),
        (OF_PAPER | {"dense": {"row": ROW | {"table": "Table 9"}}}, "has no row 'Table 9: CoT-MAE.*did you mean"),
        ({"dense": {"rows": ROW, "MRR@10": 0.4}}, r"reported.dense.rows: expected a number \(a paper's row is `row`\)"),
        (OF_PAPER | {"dense": {"row": ROW, "MRR@10": "0.402"}}, "reported.dense.MRR@10: expected a number"),
        (OF_PAPER | {"dense": {"row": []}}, "reported.dense.row: expected table and system; leave `row` out"),
        ({"dense": {"MRR@10": float("inf")}}, "reported.dense.MRR@10: expected a number that a paper could print"),
        ({"dense": {"MRR@10": 10**400}}, "reported.dense.MRR@10: expected a number that a paper could print"),
    ],
)  # fmt: skip
def test_what_is_no_row_is_refused_with_the_nearest_one(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_reported(content, "dense")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"MRR@10": 0.394}, "dense.MRR@10: Table 1: CoT-MAE, .* prints 0.402 on msmarco-passage/dev, found 0.394"),
        ({"MRR@100": 0.4}, "prints no MRR@100 on msmarco-passage/dev; expected MRR@10, success@1000, success@50"),
        ({"mean nDCG@10 of 14 sets": 0.456}, "prints no nDCG@10 on beir/Average$"),
        ({"nDCG@10 on dl19": 0.7}, "prints 0.715 on trec-dl-2019/passage, found 0.7"),
    ],
)  # fmt: skip
def test_a_number_that_the_row_does_not_print_is_refused(numbers: dict[str, float], message: str) -> None:
    reported = parse_reported(OF_PAPER | {"dense": {"row": ROW, **numbers}}, "dense")

    with pytest.raises(ValueError, match=message):
        check_reported(reported, ["dense"], "msmarco", ["dev", "dl19"])
    check_reported(reported, ["dense"], "wikipedia", ["test"])  # for another collection, the row prints nothing


def test_a_mean_counts_the_papers_collections() -> None:
    row = {"table": "Table 2", "system": "CoT-MAE", "variant": "w/ query-as-context"}
    fourteen, three = (
        parse_reported(OF_PAPER | {"dense": {"row": row, f"mean nDCG@10 of {number} sets": 0.456}}, "dense")
        for number in (14, 3)
    )

    check_reported(fourteen, ["dense"], "msmarco", ["dev"])
    with pytest.raises(ValueError, match="w/ query-as-context prints a mean of 14 collections"):
        check_reported(three, ["dense"], "msmarco", ["dev"])


def test_a_recipe_that_names_a_wrong_row_or_run_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"cot_mae.yaml: reported.retriever_2.MRR@10: Table 1: CoT-MAE prints 0.394"):
        load_recipe("cot_mae", ["reported.retriever_2.MRR@10=0.4"])
    with pytest.raises(UserError, match=r"reported.retriever_2.row: .* has no row 'Table 1: CoT-MEA'; did you mean"):
        load_recipe("cot_mae", ["reported.retriever_2.row.system=CoT-MEA"])
    with pytest.raises(UserError, match=r"reported.retriever_3: no run of this recipe; did you mean retriever_2\?"):
        load_recipe("cot_mae", ["reported.retriever_3={row: {table: Table 1, system: CoT-MAE}, MRR@10: 0.394}"])
    recipe, _ = load_recipe("cot_mae", ["reported={MRR@10: 0.4}"])  # the user's own number
    assert recipe.reported == {"MRR@10": 0.4}
