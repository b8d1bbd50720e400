"""The papers' numbers: what recipes say of them is what the file has, in this pipeline's metrics."""

import csv
import math

import pytest

from flows.recipe.load import load_recipe
from flows.recipe.shipped import shipped_recipes
from storage.results.paper_results import (
    FILE,
    PAPERS,
    Citation,
    PaperNumber,
    PaperRow,
    as_fraction,
    beir_rows,
    matching_row,
    metric_name,
    paper_collection,
    paper_numbers,
    paper_rows,
    parse_citation,
    same_collection,
)

ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


def test_every_row_is_a_number_of_one_of_the_papers() -> None:
    assert {row["paper"] for row in ROWS} == set(PAPERS.values())
    assert all(math.isfinite(as_fraction(row)) for row in ROWS)
    assert all(0 < as_fraction(row) < 1 for row in ROWS if row["scale"] != "none")


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_number_that_a_recipe_reports_is_printed_in_its_paper(name: str) -> None:
    recipe, _ = load_recipe(name)
    numbers = paper_numbers(recipe.reported, recipe.headline.run)
    if not numbers:
        return
    source = parse_citation(recipe.reported["source"])
    assert source is not None
    for each in numbers:
        split = each.split or recipe.dataset.eval_splits[0]
        reader = "msmarco_documents" if each.run == "documents" else recipe.dataset.reader
        where = "beir/Average" if each.sets else paper_collection(reader, split)
        found = {
            as_fraction(row)
            for row in ROWS
            if row["paper"] == source.paper and row["table"] in source.tables and same_collection(row["dataset"], where)
            and metric_name(row["paper"], row["metric"]) == each.metric
        }  # fmt: skip
        assert each.value in found, each


def test_a_source_names_its_tables() -> None:
    assert parse_citation("Wu et al. 2022, tables 1 and 2") == Citation("Query-as-context", ["Table 1", "Table 2"])
    assert parse_citation("Cai et al. 2023, tables 2-4") == Citation("CAME", ["Table 2", "Table 3", "Table 4"])
    assert parse_citation("Cai et al. 2023, table 2; figure 3 prints no numbers") == Citation("CAME", ["Table 2"])
    assert parse_citation("a paper of somebody, table 1") is None


def test_words_of_a_recipe_are_a_metric_and_a_place() -> None:
    found = paper_numbers({"source": "Table 1", "mean nDCG@10 of 14 sets": 0.456, "dense": {"nDCG@10 on dl19": 0.7},
                     "overlap": {"rank-biased overlap": "from 0.42 to 0.48"}}, "main")  # fmt: skip

    assert found == [
        PaperNumber("main", "mean nDCG@10 of 14 sets", "nDCG@10", None, 14, 0.456),
        PaperNumber("dense", "nDCG@10 on dl19", "nDCG@10", "dl19", None, 0.7),
    ]


def test_recall_is_what_each_papers_authors_mean_by_it() -> None:
    assert metric_name("CoT-MoTE", "R@1k") == "success@1000"
    assert metric_name("CPDAE", "R@1000") == "recall@1000"
    assert metric_name("CAME", "Top-20 accuracy") == "answer@20"
    assert metric_name("CAME", "MRR@10") == "MRR@10"


def test_the_line_that_a_row_reproduces_prints_all_its_numbers() -> None:
    source = parse_citation("Wu et al. 2022, table 1")
    assert source is not None
    among = paper_rows(source, "msmarco-passage/dev")

    found = matching_row(among, {"MRR@10": 0.402, "success@50": 0.888, "success@1000": 0.988, "nDCG@10": 0.1})

    assert found is not None
    assert found.name == "CoT-MAE, w/ query-as-context (50K) - retriever 2"
    assert matching_row(among, {"MRR@10": 0.402, "success@50": 0.5}) is None
    assert matching_row(among, {}) is None


def test_an_average_is_shown_beside_the_same_collections_alone() -> None:
    source = parse_citation("Wu et al. 2022, table 2")
    assert source is not None
    names = ["TREC-COVID", "NFCorpus", "NQ", "HotpotQA", "FiQA", "ArguAna", "Touche-2020", "CQADupStack", "Quora",
             "DBPedia", "SCIDOCS", "FEVER", "Climate-FEVER", "SciFact"]  # fmt: skip

    whole = {line.name: line for line in beir_rows(source, names, "nDCG@10")}
    part = beir_rows(source, ["SciFact"], "nDCG@10")

    assert whole["CoT-MAE, w/ query-as-context"].values["average"] == 0.456
    assert set(whole["CoT-MAE, w/ query-as-context"].values) == {*names, "average"}
    assert [set(line.values) for line in part] == [{"SciFact"}] * 4


def test_a_value_has_the_digits_that_are_printed() -> None:
    assert as_fraction({"value": "39.4", "scale": "percent"}) == 0.394
    assert as_fraction({"value": "0.9280", "scale": "fraction"}) == 0.928
    assert PaperRow("Table 1", "BM25", "", {}).name == "BM25"
