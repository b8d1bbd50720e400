"""Our runs among the paper's systems: each is below the row that its recipe names."""

import pyarrow as pa
import pytest

from flows.recipe.shipped import shipped_recipes
from storage.formats.yaml_files import read_yaml
from storage.results.reported import parse_reported
from tasks.report.page.paper_comparison import SplitMeasurements, compared_numbers, systems_by_split


def measured(split: str, **values: float) -> SplitMeasurements:
    """One metric, nDCG@10, of runs on a split of MS MARCO."""
    rows = [{"dataset": "msmarco", "split": split, "run": run, "metric": "nDCG@10", "value": value}
            for run, value in values.items()]  # fmt: skip
    return SplitMeasurements(rows, intervals=[], comparisons=[], by_query=pa.table({}), key="")


@pytest.mark.parametrize(
    ("recipe", "run", "split", "row", "equal"),
    [
        ("cot_mae_query_as_context", "retriever_1", "dl20",
         "CoT-MAE, w/ query-as-context (50K) - retriever 1", "COSTA"),
        ("cot_mae_50k", "retriever_1", "dl20",
         "CoT-MAE, CoT-MAE (50K) - retriever 1 (reproduced baseline)", "Condenser"),
        ("cot_mae_50k", "retriever_2", "dl20",
         "CoT-MAE, CoT-MAE (50K) - retriever 2 (reproduced baseline)", "SimLM"),
        ("co_condenser_query_as_context", "retriever_1", "dl19",
         "coCondenser, w/ query-as-context (120K) - retriever 1", "RetroMAE"),
        ("co_condenser", "retriever_2", "dl20",
         "coCondenser, coCondenser (120K) - retriever 2 (reproduced baseline)", "coCondenser"),
    ],
)  # fmt: skip
def test_a_run_is_below_its_own_row_where_another_system_has_an_equal_value(
    recipe: str, run: str, split: str, row: str, equal: str
) -> None:
    reported = read_yaml(shipped_recipes()[recipe])["reported"]
    (table,) = systems_by_split(parse_reported(reported, "retriever_2"), "MRR@10", [measured(split, **{run: 0.5})])
    lines = table["lines"]
    names = [line["name"] for line in lines]
    values = {line["name"]: line["values"]["nDCG@10"] for line in lines}

    assert names[names.index(run) - 1] == row
    assert values[equal] == values[row]


def test_rows_that_a_run_names_are_one_line_and_an_own_number_is_none() -> None:
    reported = read_yaml(shipped_recipes()["cot_mae_query_as_context"])["reported"]
    own = reported | {"my_run": {"nDCG@10 on dl20": 0.7}}
    split = measured("dl20", retriever_2=0.7, my_run=0.6)
    (table,) = systems_by_split(parse_reported(own, "retriever_2"), "MRR@10", [split])
    ours = {line["name"]: line for line in table["lines"]}

    assert ours["CoT-MAE, w/ query-as-context (50K) - retriever 2"]["table"] == "Table 1, Table 3, Table 4"
    assert "CoT-MAE, 5 queries/passage, retriever-2" not in ours
    assert "CoT-MAE, 10 queries/passage, retriever-2" in ours
    assert "my_run" not in ours


def test_a_number_comes_with_the_rows_that_print_it() -> None:
    reported = read_yaml(shipped_recipes()["cot_mae"])["reported"] | {"my_run": {"MRR@10": 0.4}}
    rows = {(row["run"], row["metric"]): row for row in compared_numbers(parse_reported(reported, "my_run"), [], {})}

    assert rows["retriever_2", "MRR@10"]["rows"] == ["Table 1: CoT-MAE"]
    assert rows["my_run", "MRR@10"]["rows"] == []
    assert rows["my_run", "MRR@10"]["ours"] is None
