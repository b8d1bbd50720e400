"""The papers' numbers: rows, metrics and collections of `reported_results.csv` in this pipeline's terms."""

import csv
import math

from storage.results.paper_results import (
    FILE,
    PAPERS,
    RowName,
    as_fraction,
    beir_rows,
    metric_name,
    num_beir_collections,
    paper_rows,
    printed_numbers,
    row_names,
    row_values,
)

LINES = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
QAC = RowName("Query-as-context", "Table 2", "CoT-MAE", "w/ query-as-context")


def test_each_line_is_a_number_of_one_of_the_five_papers() -> None:
    assert {number.row.paper for number in printed_numbers()} == set(PAPERS.values())
    assert len(printed_numbers()) == len(LINES)
    assert all(math.isfinite(number.value) for number in printed_numbers())
    fractions = [n for n, line in zip(printed_numbers(), LINES, strict=True) if line["scale"] != "none"]
    assert all(0 < number.value < 1 for number in fractions)


def test_a_row_prints_a_metric_of_a_collection_once() -> None:
    keys = [(number.row, number.dataset, number.metric) for number in printed_numbers()]
    assert len(keys) == len(set(keys))


def test_recall_is_what_each_papers_authors_mean_by_it() -> None:
    assert metric_name("CoT-MoTE", "R@1k") == "success@1000"
    assert metric_name("CPDAE", "R@1000") == "recall@1000"
    assert metric_name("CAME", "Top-20 accuracy") == "answer@20"
    assert metric_name("CAME", "MRR@10") == "MRR@10"


def test_rows_of_a_table_are_in_its_order_with_their_values_by_metric() -> None:
    rows = paper_rows("Query-as-context", ["Table 1"], "msmarco-passage/dev")

    assert [row.name.label for row in rows[:2]] == ["BM25", "DeepCT"]
    assert rows[0].values == {"MRR@10": 0.187, "success@50": 0.592, "success@1000": 0.857}
    assert rows[-1].name in row_names("Query-as-context")
    assert row_values(rows[-1].name, "trec-dl-2020/passage") == {"nDCG@10": 0.727}
    assert paper_rows("Query-as-context", ["Table 1"], "nq/test") == []


def test_an_average_is_shown_only_with_exactly_its_collections() -> None:
    names = ["TREC-COVID", "NFCorpus", "NQ", "HotpotQA", "FiQA", "ArguAna", "Touche-2020", "CQADupStack", "Quora",
             "DBPedia", "SCIDOCS", "FEVER", "Climate-FEVER", "SciFact"]  # fmt: skip

    complete = {row.name: row.values for row in beir_rows("Query-as-context", ["Table 2"], names, "nDCG@10")}
    part = beir_rows("Query-as-context", ["Table 2"], ["SciFact"], "nDCG@10")

    assert complete[QAC]["average"] == 0.456
    assert set(complete[QAC]) == {*names, "average"}
    assert [set(row.values) for row in part] == [{"SciFact"}] * 4
    assert num_beir_collections(QAC) == 14


def test_a_value_has_the_digits_that_are_printed() -> None:
    assert as_fraction("39.4", "percent") == 0.394
    assert as_fraction("0.9280", "fraction") == 0.928
    assert RowName("CAME", "Table 1", "BM25", "").label == "BM25"
    assert str(RowName("CAME", "Table 1", "BM25", "lex")) == "Table 1: BM25, lex"
