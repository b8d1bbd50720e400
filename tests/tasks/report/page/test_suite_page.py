"""The table of a suite: groups, averages, what is said of what is missing; and its page."""

import re
from typing import Any

import pytest
from rich.console import Console

from tasks.report.page.suite_page import as_markdown, average, columns, headings, notes, page, table, terminal_table

VALUES = {
    "first": {"alone": 0.5, "forum/a": 0.2, "forum/b": 0.4, "other": 0.3},
    "second": {"alone": 0.4, "forum/a": 0.5, "forum/b": 0.3, "other": 0.3},
}


def content(*, without: str = "", metric_of_other: str = "nDCG@10") -> dict[str, Any]:
    """What two models have on a collection, a group of two, and another collection, one of which may be left out."""
    metrics = {"alone": "nDCG@10", "forum/a": "nDCG@10", "forum/b": "nDCG@10", "other": metric_of_other}
    there = [name for name in metrics if name != without]
    return {
        "suite": "made", "title": "Made <b>up</b>", "description": "collections of a test", "metric": "nDCG@10",
        "text": "title: made\n", "models": {"first": "the first", "second": "the second"},
        "collections": [
            {"name": name, "column": name.partition("/")[0], "metric": metrics[name], "split": "test"} for name in there
        ],
        "columns": {"alone": 1, "forum": 2, "other": 1},
        "absent": {without: f"{without}: no data set at /nowhere"} if without else {},
        "rows": [
            {"dataset": name, "run": run, "metric": metrics[name], "value": values[name], "queries": 7, "titles": True}
            for run, values in VALUES.items()
            for name in there
        ],
        "intervals": [
            {"dataset": name, "run": run, "metric": metrics[name], "low": values[name] - 0.1,
             "high": values[name] + 0.1}
            for run, values in VALUES.items()
            for name in there
        ],
        "comparisons": [
            {"dataset": name, "run": "second", "baseline": "first", "metric": metrics[name], "p_holm": 0.01,
             "difference": VALUES["second"][name] - VALUES["first"][name]}
            for name in there
        ],
        "expected_from": None, "expected": [], "inputs": dict.fromkeys(there, "abc"), "stages": [],
    }  # fmt: skip


def shown(suite_report: dict[str, Any]) -> dict[str, list[float]]:
    return {run: [round(cell.value, 6) for cell in cells] for run, cells in table(suite_report).items()}


def test_a_group_is_one_column_and_the_average_is_over_columns_not_collections() -> None:
    results = shown(content())

    assert headings(content()) == ["alone", "forum", "other", "average"]
    assert results["first"] == [0.5, 0.3, 0.3, pytest.approx((0.5 + 0.3 + 0.3) / 3, abs=1e-6)]
    assert results["second"] == [0.4, 0.4, 0.3, pytest.approx((0.4 + 0.4 + 0.3) / 3, abs=1e-6)]


def test_the_best_of_each_column_is_known_also_where_several_are() -> None:
    first, second = table(content()).values()

    assert [cell.best for cell in first] == [True, False, True, first[3].value >= second[3].value]
    assert [cell.best for cell in second] == [False, True, True, second[3].value >= first[3].value]


def test_signs_are_of_single_collections() -> None:
    """Of a group's mean over collections no test was made; of an equal pair there is no sign."""
    assert [cell.sign for cell in table(content())["second"]] == [-1, 0, 0, 0]
    assert [cell.sign for cell in table(content())["first"]] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("without", "heads"),
    [
        ("forum/b", ["alone", "forum (1 of 2)", "other", "average"]),
        ("other", ["alone", "forum", "average (2 of 3)"]),
    ],
)
def test_what_a_mean_lacks_stands_above_it(without: str, heads: list[str]) -> None:
    built = content(without=without)

    assert headings(built) == heads
    assert f"Omitted: {without}: no data set at /nowhere." in notes(built)


def test_different_metrics_have_no_average_and_are_named() -> None:
    built = content(metric_of_other="MRR@10")

    assert average(built) is None
    assert headings(built) == ["alone nDCG@10", "forum nDCG@10", "other MRR@10"]
    assert [column.name for column in columns(built)] == ["alone", "forum", "other"]


def test_terminal_and_markdown_have_the_same_cells() -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(terminal_table(content()))
    numbers = re.findall(r"0\.\d{3}[▲▼]?", captured.get())

    assert numbers == re.findall(r"0\.\d{3}[▲▼]?", as_markdown(content()))
    assert len(numbers) == 8
    assert "0.400▼" in numbers
    assert "| first | **0.500** | 0.300 | **0.300** |" in as_markdown(content())


def test_what_a_user_calls_things_is_neither_html_nor_a_cell_of_the_table() -> None:
    named = "a|b<script>alert(1)</script>"
    built = content()
    built |= {
        "title": f"# {named}\n<b>", "description": named, "models": {"first": "x", named: "y"},
        "rows": [row | {"run": row["run"].replace("second", named)} for row in built["rows"]],
        "comparisons": [row | {"run": row["run"].replace("second", named)} for row in built["comparisons"]],
    }  # fmt: skip

    lines = as_markdown(built).splitlines()

    assert "<" not in "".join(lines).replace("<sup>", "")
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}) == 1
    assert lines[0].startswith("# \\# a\\|b&lt;script&gt;")


def test_what_is_not_as_expected_is_said() -> None:
    row = {"dataset": "alone", "run": "first", "metric": "nDCG@10", "expected": 0.6, "found": 0.5, "alike": False}
    built = content() | {"expected": [row], "expected_from": "a paper"}

    assert "first on alone: expected 0.6000 nDCG@10 (a paper), measured 0.5000." in notes(built)
    assert "expected" not in notes(built | {"expected": [row | {"alike": True}]})
    assert ">differs<" in page(built)


def test_texts_without_titles_are_said() -> None:
    built = content()
    for row in built["rows"]:
        row["titles"] = False

    assert "without titles" in notes(built)
    assert "without titles" not in notes(content())


def test_the_page_escapes_needs_no_network_and_is_the_same_each_time() -> None:
    html = page(content())

    assert "Made &lt;b&gt;up&lt;/b&gt;" in html
    assert "<b>up</b>" not in html
    assert not re.search(r"(src|href)\s*=|<script|@import|url\(", html)
    assert html == page(content())
    assert html.count('class="bar"') == 2 * 3
    assert html.count('class="whisker"') == 2 * 2  # the group's mean has no interval
