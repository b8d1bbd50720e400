"""Each part of a whole report against what its inputs say."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from scipy import stats

from flows.prefect_server.ui_artifacts import metrics_table
from tasks.report.page.chart_geometry import axis, position, scatter
from tasks.report.page.html import page as page_of
from tasks.report.page.markdown import results_page
from tasks.report.page.statistics import grid
from tasks.report.page.transfer_table import elsewhere
from tasks.report.publish import terminal_table
from tests.tasks.reports import QUERIES, RUNS, published


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def content(page: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())
    return results


def values(page: Path, split: str, run: str, metric: str) -> np.ndarray:
    rows = pq.read_table(page.parent.parent / split / "queries.parquet").to_pylist()
    return np.array([row["value"] for row in rows if (row["run"], row["metric"]) == (run, metric)])


def test_each_number_of_the_paper_stands_beside_ours_with_students_test(page: Path, content: dict[str, Any]) -> None:
    rows = {(row["run"], row["metric"]): row for row in content["beside"]}
    row = rows["retriever_2", "MRR@10"]
    expected = stats.ttest_1samp(values(page, "dev", "retriever_2", "MRR@10"), 0.402)

    assert row["p"] == pytest.approx(expected.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert row["difference"] == pytest.approx(values(page, "dev", "retriever_2", "MRR@10").mean() - 0.402)
    assert rows["retriever_2", "nDCG@10 on dl19"]["ours"] == pytest.approx(
        values(page, "dl19", "retriever_2", "nDCG@10").mean()
    )
    assert rows["retriever_3", "MRR@10"]["ours"] is None  # no such run


def test_a_mean_over_collections_counts_a_group_once(page: Path, content: dict[str, Any]) -> None:
    scifact, first, second, quora = (values(page, f"other-{n}", "retriever_2", "nDCG@10").mean() for n in range(4))
    row = next(row for row in content["beside"] if row["metric"] == "mean nDCG@10 of 3 sets")
    table = elsewhere(content["transfer"], content["groups"], "retriever_2")

    others = next(row for row in content["beside"] if row["metric"] == "mean nDCG@10 of 14 sets")
    assert others["ours"] is None  # three are not fourteen
    mean = (scifact + (first + second) / 2 + quora) / 3
    assert row["ours"] == pytest.approx(mean)
    assert table is not None
    assert table["names"] == ["SciFact", "CQADupStack", "Quora"]
    assert table["lines"][1]["cells"][1][0] == pytest.approx((first + second) / 2)
    assert table["lines"][1]["cells"][-1][0] == pytest.approx(mean)


def test_a_run_that_one_collection_lacks_has_no_average() -> None:
    def one(dataset: str, **values: float) -> dict[str, Any]:
        return {"rows": [{"dataset": dataset, "metric": "nDCG@10", "run": run, "value": value}
                         for run, value in values.items()]}  # fmt: skip

    table = elsewhere([one("A", bm25=0.2, dense=0.4), one("B", dense=0.6)], {}, "other")

    assert table is not None
    assert table["lines"] == [
        {"run": "bm25", "cells": [(0.2, False), (None, False), (None, False)]},
        {"run": "dense", "cells": [(0.4, True), (0.6, True), (0.5, True)]},
    ]
    assert table["main"] == "dense"
    assert elsewhere([], {}, "dense") is None


def test_ours_stand_below_the_systems_that_they_reproduce(content: dict[str, Any]) -> None:
    dev, dl19 = content["among"]
    names = [line["name"] for line in dev["lines"]]

    assert dev["collection"] == "msmarco-passage/dev"
    assert names[names.index("retriever_2") - 1] == "CoT-MAE, w/ query-as-context (50K) - retriever 2"
    assert names[names.index("bm25") - 1] == "BM25"
    theirs = [line["values"]["MRR@10"] for line in dev["lines"] if not line["ours"]]
    assert theirs == sorted(theirs)
    assert dl19["metric"] == "nDCG@10"
    assert "retriever_1" not in names  # the recipe has no number of the paper for it


def test_the_papers_systems_stand_below_our_runs_on_other_collections(content: dict[str, Any]) -> None:
    results = {row["name"]: row["values"] for row in content["among_elsewhere"]}

    assert results["CoT-MAE, w/ query-as-context"] == {"SciFact": 0.642, "CQADupStack": 0.337, "Quora": 0.859}


def test_the_grid_counts_every_query_at_its_two_ranks(page: Path) -> None:
    by_query = pq.read_table(page.parent.parent / "dev" / "queries.parquet")
    ours, theirs = (values(page, "dev", run, "MRR@10") for run in ("retriever_2", "bm25"))
    results = grid(by_query, "retriever_2", "bm25", "MRR@10")
    assert results is not None

    def tick(value: float) -> str:
        return "none" if value == 0 else str(round(1 / value))

    slow: dict[tuple[str, str], int] = {}
    for one, other in zip(ours, theirs, strict=True):
        slow[tick(one), tick(other)] = slow.get((tick(one), tick(other)), 0) + 1
    ticks = results["ticks"]
    assert {(ticks[cell["run"]], ticks[cell["baseline"]]): cell["queries"] for cell in results["cells"]} == slow
    assert ticks == ["none", "10", "9", "8", "7", "6", "5", "4", "3", "2", "1"]
    drawn = scatter(results)
    assert drawn["better"] == (ours > theirs).sum()
    assert drawn["better"] + drawn["equal"] + drawn["worse"] == QUERIES
    assert grid(by_query, "retriever_2", "nobody", "MRR@10") is None


def test_metrics_of_many_values_are_counted_in_tenths(page: Path) -> None:
    by_query = pq.read_table(page.parent.parent / "dl19" / "queries.parquet")

    results = grid(by_query, "retriever_2", "bm25", "nDCG@10")

    assert results is not None
    assert results["ticks"][3] == "0.3"
    ours, theirs = (values(page, "dl19", run, "nDCG@10") for run in ("retriever_2", "bm25"))
    thirds = next(cell for cell in results["cells"] if (cell["run"], cell["baseline"]) == (3, 0))
    assert thirds["queries"] == ((ours == 1 / 3) & (theirs == 0)).sum()


@pytest.mark.parametrize(
    ("metric", "value", "baseline", "cell"), [("nDCG@10", 0.27, 0.04, (3, 0)), ("MRR@10", 0.02, 0.5, (0, 5))]
)
def test_a_value_counts_at_the_nearest_tenth(metric: str, value: float, baseline: float, cell: tuple[int, int]) -> None:
    """Also a mean of reciprocal ranks, as of a few-shot round's samples: 0.02 is no rank of at most 10."""
    rows = [{"run": run, "query_id": "q", "metric": metric, "value": number} for run, number in
            (("dense", value), ("bm25", baseline))]  # fmt: skip

    results = grid(pa.Table.from_pylist(rows), "dense", "bm25", metric)

    assert results is not None
    assert results["cells"] == [{"run": cell[0], "baseline": cell[1], "queries": 1}]
    assert scatter(results)["better" if cell[0] > cell[1] else "worse"] == 1


def test_every_part_is_in_the_contents_once_and_is_there(page: Path) -> None:
    text = page.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)

    assert len(ids) == len(set(ids))
    linked = re.findall(r'<li><a href="#([^"]+)">', text)
    assert linked == ["runs", "paper", "wins", "metrics", "tests", "transfer", "experts", "overlap", "curves",
                      "pseudo_queries", "storage", "costs", "lineage", "environment", "recipe"]  # fmt: skip
    assert set(linked) <= set(ids)
    assert set(re.findall(r'aria-labelledby="([^"]+)"', text)) <= set(ids)


def test_wins_are_shown_with_their_texts_and_nothing_of_them_is_markup(page: Path) -> None:
    text = page.read_text()

    assert "<h4>win 0</h4>" in text
    assert "&lt;b&gt;the text&lt;/b&gt;" in text
    assert text.count('<article class="case better">') == 3
    assert '<span class="rank none">not found</span>' in text
    assert "1 more wins" in text


def test_what_it_took_is_the_sum_of_the_stages(page: Path, content: dict[str, Any]) -> None:
    costs = content["costs"]

    assert (costs["seconds"], costs["here"], costs["cpu_seconds"]) == (91.0, 61.0, 220.0)
    assert {cost["device"]: cost["seconds"] for cost in costs["devices"]} == {"x86_64": 30.0, "NVIDIA H200": 60.0}
    assert costs["energy_joules"] == {"GPUs": 7200.0}
    assert [environment["stages"] for environment in content["environments"]] == [1, 1]
    text = page.read_text()
    assert "<dt>energy, GPUs</dt><dd>2 Wh</dd>" in text
    assert "<dt>peak memory of a process</dt><dd>2.0 GiB</dd>" in text
    assert "<dd>2.13.0</dd>" in text


def test_runs_of_a_further_split_are_marked_by_its_own_tests(page: Path, content: dict[str, Any]) -> None:
    (dl19,) = content["splits"]

    assert {row["run"] for row in dl19["rows"]} == set(RUNS)
    assert re.search(r"Split dl19.*?Means over 60 queries; so few.*?retriever_2</th><td><strong>0\.\d+</strong>"
                     r'<span class="mark">▲', page.read_text(), re.DOTALL)  # fmt: skip


def test_every_split_is_printed_and_is_among_the_rows(page: Path, content: dict[str, Any]) -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(terminal_table(page.with_suffix(".json")))
    first, _, second = capture.get().partition("60 queries of split dev")

    assert list(dict.fromkeys(row["split"] for row in content["rows"])) == ["dev", "dl19"]
    value = values(page, "dl19", "retriever_2", "nDCG@10").mean()
    [row] = [row for row in content["rows"] if (row["run"], row["split"]) == ("retriever_2", "dl19")]
    assert row["value"] == pytest.approx(value)
    assert "nDCG" not in first
    assert "60 queries of split dl19" in second
    assert re.search(rf"retriever_2\s+{value:.3f}▲", second)
    assert "MRR@10: 1 / rank of the first relevant document" in second
    assert "p_holm: p after Holm's correction" in second


def test_results_on_the_headlines_split_are_not_those_of_another(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "one.json").write_text(json.dumps(content))
    kept = results_page([tmp_path / "one.json"])
    table = {(row["run"], row["metric"]) for row in metrics_table(content)}

    assert "- *success@50*: the share of queries" in kept
    assert "- *p_holm*: p after" in kept
    dev, _, dl19 = kept.partition("Split dl19")
    assert "nDCG@10 |" not in dev.split("paper")[0]
    assert "nDCG@10 |" in dl19
    assert {("bm25", "nDCG@10 on dl19"), ("bm25", "recall@1000")} <= table
    assert ("bm25", "nDCG@10") not in table


def test_terms_are_defined_where_they_are_shown(page: Path, content: dict[str, Any]) -> None:
    sections = {part.split('"')[0]: part for part in page.read_text().split('<section id="')[1:]}

    def defined(section: str) -> list[str]:
        return re.findall(r"<dt>([^<]+)</dt><dd>[^<]{10,}</dd>", sections[section].split('class="terms"')[1])

    assert defined("runs") == ["MRR@10"]
    assert defined("metrics") == ["MRR@10", "success@50", "success@1000", "recall@1000", "nDCG@10"]
    assert defined("tests") == ["p_holm", "p", "95 % interval"]
    assert "none is among the first 10," in sections["runs"]
    systems = content["runs"] | {"bm25": "Lucene's BM25", "retriever_1": "dense + late bi-encoder"}
    runs = page_of(content | {"runs": systems}).split('<section id="runs"')[1].split("</section>")[0]
    assert re.findall("<dt>([^<]+)</dt>", runs) == ["MRR@10", "BM25", "bi-encoder", "dense", "late"]
    assert "@media print" in page.read_text()
    assert not re.search(r"@media print[^@]*\.terms[^}]*none", page.read_text())


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.18, 0.43, ["0.15", "0.20", "0.25", "0.30", "0.35", "0.40", "0.45"]),
        (0.0, 0.5, ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (0.3, 0.3, None),
    ],
)
def test_an_axis_holds_its_values_between_round_numbers(low: float, high: float, ticks: list[str] | None) -> None:
    results = axis(low, high)

    assert results["low"] <= low <= high <= results["high"]
    assert ticks is None or [tick["words"] for tick in results["ticks"]] == ticks
    assert position(results["low"], results) == 0
    assert position(results["high"], results) == 1
    assert float(results["ticks"][0]["words"]) == pytest.approx(results["low"])
