"""The report states what was measured, the same way each time, and shows nothing that it was not given."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from storage.artifact import Artifact
from storage.errors import UserError
from tasks.report.page.html import page as page_of
from tasks.report.publish import publish, terminal_table
from tasks.report.report import contents, measured
from tests.tasks.report.measurements import SETTINGS, STAGES, comparison


def test_rows_and_comparisons_are_those_of_the_metrics(metrics: Artifact[Any]) -> None:
    content = contents(measured(metrics), None, SETTINGS)

    assert content["rows"][1] == {
        "run": "dense", "dataset": "small", "split": "test", "titles": False, "metric": "MRR@10", "value": 0.75,
        "queries": 4, "spread": None,
    }  # fmt: skip
    assert content["comparisons"] == [comparison()]


def test_equal_inputs_make_equal_bytes(tmp_path: Path, make: Callable[[Path], Artifact[Any]]) -> None:
    for name in ("first", "second"):
        make(tmp_path / name)

    for file in ("report.json", "report.html"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_losses_and_times_are_no_part_of_the_artifacts_hash(built: Artifact[Any]) -> None:
    content = json.loads((built.path / "report.json").read_text())

    assert not {"curves", "stages"} & set(content)
    assert json.loads((built.path / "logs" / "curves.json").read_text()) == {
        "dense": {"loss": [[1.0, 4.0], [2.0, 2.0]]}
    }


def test_what_is_published_has_the_stages_and_the_losses(built: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "reports" / "tiny", built, STAGES)
    content = json.loads(page.with_name("report.json").read_text())

    assert content["stages"] == [{key: value for key, value in stage.items() if key != "built"} for stage in STAGES]
    assert content["curves"]["dense"]["loss"][-1] == [2.0, 2.0]
    assert "1 min 1 s" in page.read_text()
    assert "c" * 24 in page.read_text()


def test_the_page_begins_with_the_headlines_own_test_or_with_none(built: Artifact[Any]) -> None:
    content = json.loads((built.path / "report.json").read_text())
    others = content | {"comparisons": [comparison(run="bm25", baseline="dense")]}

    assert '<p class="verdict good">dense is better than bm25' in page_of(content)
    assert '<p class="verdict' not in page_of(others)
    assert "Highest MRR@10: dense, 0.750." in page_of(content)


def test_text_is_escaped_and_the_page_asks_for_nothing(built: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "out", built, STAGES).read_text()

    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; text" in page
    assert "A tiny &lt;run&gt; &amp; more" in page
    without_links = re.sub(r'href="#|xmlns="http://www.w3.org/2000/svg"', "", page)
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?:", without_links)


def test_every_element_of_the_page_is_closed(built: Artifact[Any], tmp_path: Path) -> None:
    class Closed(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta",):
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            """A drawing's element that closes itself."""

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    parser = Closed()
    parser.feed(publish(tmp_path / "out", built, STAGES).read_text())

    assert parser.open == []


def test_figures_of_the_pseudo_queries_are_shown(built: Artifact[Any]) -> None:
    page = (built.path / "report.html").read_text()

    assert re.search(r"<dt>are distinct</dt><dd>75.0 %</dd>", page)
    assert "3 words 6, 4 words 0, 5 words 2" in page


def test_absent_rows_and_the_papers_numbers_are_shown(built: Artifact[Any]) -> None:
    page = (built.path / "report.html").read_text()

    assert "System <code>bm25_doc2query</code> was not run: queries.for lacks retrieve" in page
    assert "<td>0.394</td><td>0.750</td><td>+0.356</td>" in page
    assert "<td>0.187</td><td>0.438</td><td>+0.251</td>" in page


def test_which_view_wins_which_queries(built: Artifact[Any]) -> None:
    content, page = json.loads((built.path / "report.json").read_text()), (built.path / "report.html").read_text()

    assert content["experts"] == [{"run": "both", "views": [
        {"run": "dense", "wins": 2, "shared": 2, "queries": ["what is <0>", "what is <3>"]},
        {"run": "bm25", "wins": 0, "shared": 2, "queries": []},
    ]}]  # fmt: skip
    assert "<li>what is &lt;0&gt;</li>" in page
    assert "dense is the only best on 2 queries" in page


def test_agreement_and_storage_are_shown(built: Artifact[Any]) -> None:
    page = (built.path / "report.html").read_text()

    assert re.findall(r'class="shaded"[^>]*>([0-9.]+)<', page) == ["0.250", "0.500", "0.750", "0.625"]
    assert 'aria-label="bm25: 91.2 bytes per passage"' in page
    assert 'aria-label="dense: 2,016 bytes per passage"' in page
    assert "dense 1,536, lexical 480<" in page


def test_the_spread_of_a_mean_over_samples_stands_beside_it(
    make: Callable[[Path], Artifact[Any]], tmp_path: Path
) -> None:
    built = make(tmp_path / "made")
    content = json.loads((built.path / "report.json").read_text())
    content["rows"][1]["spread"] = 0.0125

    assert "0.750</strong>&nbsp;±&nbsp;0.013" in page_of(content) or "±&nbsp;0.012" in page_of(content)


def test_the_terminal_table_marks_the_better_run_and_explains_itself(built: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "out", built, [])
    console = Console(width=80, record=True, file=(tmp_path / "terminal").open("w"))
    console.print(terminal_table(page.with_suffix(".json")))
    text = console.export_text()

    assert re.search(r"dense\s+0.750▲", text)
    assert re.search(r"bm25\s+0.438", text)
    assert "dense is better than bm25: +0.312 MRR@10 (p_holm = 0.03)" in text
    assert "not run: bm25_doc2query" in text
    assert "highest MRR@10: dense, 0.750" in text


def test_a_headline_about_a_run_that_was_not_measured_is_refused(metrics: Artifact[Any]) -> None:
    with pytest.raises(UserError, match="colbert is none of the runs measured"):
        contents(measured(metrics), None, SETTINGS.model_copy(update={"main": "colbert"}))
    with pytest.raises(UserError, match=r"nDCG@10 was not measured"):
        contents(measured(metrics), None, SETTINGS.model_copy(update={"metric": "nDCG@10"}))
