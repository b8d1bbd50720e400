"""The report states what was measured, the same way each time, and shows nothing that it was not given."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from scipy import stats

from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Overlap, Queries
from tasks.report.page.html import page as page_of
from tasks.report.page.statistics import clearest_wins, direction, intervals, top, verdict, wins
from tasks.report.page.training_curves import losses, observed, thinned
from tasks.report.report import Reporting, contents, measured, publish, report, terminal_table

SETTINGS = Reporting(
    recipe="tiny", title="A tiny <run> & more", paper="cot_mae", dataset="Leads of an encyclopedia, CC BY-SA",
    generator="a small T5", text="paper: cot_mae\nseed: 42\n", runs={"bm25": "Lucene", "dense": "A bi-encoder"},
    absent={"bm25_doc2query": "queries.for lacks retrieve"}, main="dense", baseline="bm25", metric="MRR@10",
    reported={"source": "Table 1", "MRR@10": 0.394, "bm25": {"MRR@10": 0.187}}, trained=["dense"],
    stored=["bm25", "dense"], views={"both": ["dense", "bm25"], "dense": []},
)  # fmt: skip
VALUES = {"bm25": [0.0, 0.5, 1.0, 0.25], "dense": [1.0, 0.5, 1.0, 0.5]}


def by_query(values: dict[str, list[float]] = VALUES) -> pa.Table:
    rows = [
        {"run": run, "query_id": f"q{place}", "metric": "MRR@10", "value": value}
        for run, found in values.items()
        for place, value in enumerate(found)
    ]
    return pa.Table.from_pylist(rows)


def comparison(**changes: Any) -> dict[str, Any]:
    row = {"run": "dense", "baseline": "bm25", "metric": "MRR@10", "difference": 0.3125}
    return {**row, "p": 0.01, "p_randomisation": 0.02, "p_holm": 0.03, **changes}


@pytest.fixture
def metrics(tmp_path: Path) -> Artifact[Any]:
    folder = tmp_path / "metrics"
    folder.mkdir()
    means = [
        {
            "run": run,
            "dataset": "small",
            "split": "test",
            "titles": False,
            "metric": "MRR@10",
            "value": sum(found) / 4,
            "queries": 4,
            "spread": None,
        }
        for run, found in VALUES.items()
    ]
    pq.write_table(pa.Table.from_pylist(means), folder / "rows.parquet")
    pq.write_table(pa.Table.from_pylist([comparison()]), folder / "comparisons.parquet")
    pq.write_table(by_query(), folder / "queries.parquet")
    return Artifact("evaluate", "m" * 24, folder)


@pytest.fixture
def quality(tmp_path: Path) -> Artifact[Any]:
    folder = tmp_path / "quality"
    folder.mkdir()
    queries = [{"query": "who < what", "kept": True}]
    sample = {"passage_id": "d1-0", "passage": "<script>alert(1)</script> & text", "queries": queries}
    (folder / "quality.json").write_text(
        json.dumps({"distinct_share": 0.75, "words": {"3": 6, "5": 2}, "samples": [sample]})
    )
    return Artifact("query_quality", "q" * 24, folder)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Artifact[Any]:
    log = tmp_path / "checkpoint" / "logs" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 1, "loss": 4.0}\n{"step": 2, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    return Artifact("train", "c" * 24, tmp_path / "checkpoint")


@pytest.fixture
def beside(tmp_path: Path, written: Any) -> tuple[Artifact[Any], Artifact[Any], list[Artifact[Any]]]:
    """The questions, how much the runs agree, and what they are searched in."""
    asked = written(Queries, [{"query_id": f"q{n}", "text": f"what is <{n}>"} for n in range(4)])
    agreement = written(Overlap, [
        {"run_a": "bm25", "run_b": "dense", "queries": 4, "overlap_10": 0.25, "overlap_100": 0.5, "overlap_1000": 0.75,
         "rbo": 0.625}
    ])  # fmt: skip
    for name, text in (
        ("lucene", {"engine": "bm25", "bytes_per_passage": 91.25}),
        ("vectors", {"bytes_per_passage": {"dense": 1536.0, "lexical": 480.5}}),
    ):
        (tmp_path / name).mkdir()
        file = "index.json" if name == "lucene" else "vectors.json"
        (tmp_path / name / file).write_text(json.dumps(text))
    return (
        asked,
        agreement,
        [Artifact("index", "i" * 24, tmp_path / "lucene"), Artifact("encode", "e" * 24, tmp_path / "vectors")],
    )


@pytest.fixture
def make(
    metrics: Artifact[Any], quality: Artifact[Any], checkpoint: Artifact[Any],
    beside: tuple[Artifact[Any], Artifact[Any], list[Artifact[Any]]],
) -> Callable[[Path], Artifact[Any]]:  # fmt: skip
    asked, agreement, stored = beside

    def build(folder: Path) -> Artifact[Any]:
        report.body(
            folder, [metrics], asked, quality, [agreement], [checkpoint], stored, None, [], [], settings=SETTINGS
        )
        return Artifact("report", "r" * 24, folder)

    return build


@pytest.fixture
def made(tmp_path: Path, make: Callable[[Path], Artifact[Any]]) -> Artifact[Any]:
    return make(tmp_path / "made")


BUILT = {
    "seconds": 61.0, "cpu_seconds": 100.0, "peak_memory_mib": 1024, "device": "a processor",
    "machine": {"cores": 2, "system": "Linux", "python": "3.11"}, "versions": {"torch": "2.13.0"},
}  # fmt: skip
STAGES = [
    {
        "stage": "train",
        "round": "dense",
        "key": "c" * 24,
        "cached": False,
        "seconds": 61.0,
        "rows": None,
        "inputs": ["source/0"],
        "built": BUILT,
    },
    {
        "stage": "evaluate",
        "round": "",
        "key": "m" * 24,
        "cached": True,
        "seconds": 2.0,
        "rows": None,
        "inputs": [[f"train/{'c' * 24}"]],
        "built": {**BUILT, "peak_memory_mib": 2048},
    },
]


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


def test_losses_and_times_are_no_part_of_the_artifacts_hash(made: Artifact[Any]) -> None:
    content = json.loads((made.path / "report.json").read_text())

    assert not {"curves", "stages"} & set(content)
    assert json.loads((made.path / "logs" / "curves.json").read_text()) == {"dense": {"loss": [[1.0, 4.0], [2.0, 2.0]]}}


def test_what_is_published_has_the_stages_and_the_losses(made: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "reports" / "tiny", made, STAGES)
    content = json.loads(page.with_name("report.json").read_text())

    assert content["stages"] == [{key: value for key, value in each.items() if key != "built"} for each in STAGES]
    assert content["curves"]["dense"]["loss"][-1] == [2.0, 2.0]
    assert "1 min 1 s" in page.read_text()
    assert "c" * 24 in page.read_text()


def test_the_page_begins_with_the_headlines_own_test_or_with_none(made: Artifact[Any]) -> None:
    content = json.loads((made.path / "report.json").read_text())
    others = content | {"comparisons": [comparison(run="bm25", baseline="dense")]}

    assert '<p class="verdict good">dense is better than bm25' in page_of(content)
    assert '<p class="verdict' not in page_of(others)


def test_text_is_escaped_and_the_page_asks_for_nothing(made: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "out", made, STAGES).read_text()

    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; text" in page
    assert "A tiny &lt;run&gt; &amp; more" in page
    asked = re.sub(r'href="#|xmlns="http://www.w3.org/2000/svg"', "", page)
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?:", asked)


def test_every_element_of_the_page_is_closed(made: Artifact[Any], tmp_path: Path) -> None:
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
    parser.feed(publish(tmp_path / "out", made, STAGES).read_text())

    assert parser.open == []


def test_figures_of_the_pseudo_queries_are_shown(made: Artifact[Any]) -> None:
    page = (made.path / "report.html").read_text()

    assert re.search(r"<dt>are distinct</dt><dd>75.0 %</dd>", page)
    assert "3 words 6, 4 words 0, 5 words 2" in page


def test_absent_rows_and_the_papers_numbers_are_shown(made: Artifact[Any]) -> None:
    page = (made.path / "report.html").read_text()

    assert "There is no row <code>bm25_doc2query</code>: queries.for lacks retrieve" in page
    assert "<td>0.394</td><td>0.750</td><td>+0.356</td>" in page
    assert "<td>0.187</td><td>0.438</td><td>+0.251</td>" in page


def test_which_view_wins_which_queries(made: Artifact[Any]) -> None:
    content, page = json.loads((made.path / "report.json").read_text()), (made.path / "report.html").read_text()

    assert content["experts"] == [{"run": "both", "views": [
        {"run": "dense", "wins": 2, "shared": 2, "queries": ["what is <0>", "what is <3>"]},
        {"run": "bm25", "wins": 0, "shared": 2, "queries": []},
    ]}]  # fmt: skip
    assert "<li>what is &lt;0&gt;</li>" in page
    assert "dense alone is best on 2 queries" in page


def test_wins_need_all_others_to_be_worse() -> None:
    values = {"a": [1.0, 0.5, 0.0, 0.2], "b": [0.5, 0.5, 0.0, 0.9], "c": [0.9, 0.1, 0.0, 0.1]}

    found = clearest_wins(by_query(values).take([5, 1, 0, 3, 2, 4, *range(6, 12)]), ["a", "b", "c"], "MRR@10", {})

    assert [(each["wins"], each["shared"], each["queries"]) for each in found] == [
        (1, 2, ["q0"]), (1, 2, ["q3"]), (0, 2, [])
    ]  # fmt: skip


def test_agreement_and_storage_are_shown(made: Artifact[Any]) -> None:
    page = (made.path / "report.html").read_text()

    assert re.findall(r'class="shaded"[^>]*>([0-9.]+)<', page) == ["0.250", "0.500", "0.750", "0.625"]
    assert 'aria-label="bm25: 91.2 bytes a passage"' in page
    assert 'aria-label="dense: 2,016 bytes a passage"' in page
    assert "dense 1,536, lexical 480<" in page


def test_what_a_training_tells_beside_its_losses(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text(
        '{"step": 1, "contrast_late": 2.0, "weight_late": 0.4, "wins_late": 0.3, "ties": 0.1, "entropy": 1.0}\n'
    )

    assert losses(tmp_path) == {"contrast_late": [(1.0, 2.0)]}
    assert observed(tmp_path) == {
        "mean weight of each expert": {"late": [(1.0, 0.4)]},
        "share of queries that each expert wins": {"late": [(1.0, 0.3)]},
        "competition": {"ties": [(1.0, 0.1)], "entropy": [(1.0, 1.0)]},
    }


def test_the_spread_of_a_mean_over_samples_stands_beside_it(
    make: Callable[[Path], Artifact[Any]], tmp_path: Path
) -> None:
    made = make(tmp_path / "made")
    content = json.loads((made.path / "report.json").read_text())
    content["rows"][1]["spread"] = 0.0125

    assert "0.750</strong>&nbsp;±&nbsp;0.013" in page_of(content) or "±&nbsp;0.012" in page_of(content)


def test_the_interval_is_students(metrics: Artifact[Any]) -> None:
    found = {row["run"]: row for row in intervals(by_query({"bm25": [0.2, 0.4, 0.6, 0.5], "dense": [1.0] * 4}))}

    low, high = stats.ttest_1samp([0.2, 0.4, 0.6, 0.5], 0).confidence_interval(0.95)
    assert found["bm25"]["low"] == pytest.approx(low)
    assert found["bm25"]["high"] == pytest.approx(high)
    assert (found["dense"]["low"], found["dense"]["high"]) == (1.0, 1.0)


def test_wins_are_counted_by_query_not_by_row() -> None:
    rows = by_query()
    shuffled = rows.take([3, 0, 2, 1, 4, 6, 7, 5])

    found = wins(shuffled, [comparison(), comparison(metric="recall@50")], "MRR@10")

    assert found == [{"run": "dense", "baseline": "bm25", "metric": "MRR@10", "better": 2, "equal": 2, "worse": 0}]


@pytest.mark.parametrize(
    ("changes", "sign", "words"),
    [
        ({}, 1, "dense is better than bm25: +0.312 MRR@10 (p_holm = 0.03)"),
        ({"difference": -0.2}, -1, "dense is worse than bm25: −0.200 MRR@10 (p_holm = 0.03)"),
        ({"p_holm": 0.05}, 0, "dense is not reliably different from bm25: +0.312 MRR@10 (p_holm = 0.05)"),
        ({"p_holm": 1e-12}, 1, "dense is better than bm25: +0.312 MRR@10 (p_holm < 0.0001)"),
    ],
)
def test_a_verdict_follows_the_corrected_p(changes: dict[str, Any], sign: int, words: str) -> None:
    assert direction(comparison(**changes)) == sign
    assert verdict(comparison(**changes)) == words


def test_the_terminal_table_marks_the_better_run_and_explains_itself(made: Artifact[Any], tmp_path: Path) -> None:
    page = publish(tmp_path / "out", made, [])
    console = Console(width=80, record=True, file=(tmp_path / "terminal").open("w"))
    console.print(terminal_table(page.with_suffix(".json")))
    text = console.export_text()

    assert re.search(r"dense\s+0.750▲", text)
    assert re.search(r"bm25\s+0.438", text)
    assert "dense is better than bm25: +0.312 MRR@10 (p_holm = 0.03)" in text
    assert "no row bm25_doc2query" in text


def test_a_headline_about_a_run_that_was_not_measured_is_refused(metrics: Artifact[Any]) -> None:
    with pytest.raises(UserError, match="colbert is none of the runs measured"):
        contents(measured(metrics), None, SETTINGS.model_copy(update={"main": "colbert"}))
    with pytest.raises(UserError, match=r"nDCG@10 was not measured"):
        contents(measured(metrics), None, SETTINGS.model_copy(update={"metric": "nDCG@10"}))


def test_the_rate_of_a_training_is_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 10, "mlm": 3.5, "context": 5.0, "learning_rate": 0.1, "rows_per_second": 90.0}\n')

    assert losses(tmp_path) == {"mlm": [(10.0, 3.5)], "context": [(10.0, 5.0)]}


def test_long_curves_are_thinned_to_means() -> None:
    assert thinned([(step, float(step)) for step in range(1, 321)])[0] == (1.5, 1.5)
    assert thinned([]) == []


@pytest.mark.parametrize(
    ("values", "end"), [([0.03], 0.05), ([0.12, 0.31], 0.4), ([0.4], 0.4), ([], 0.05), ([1.0], 1.0)]
)
def test_an_axis_ends_at_a_round_number(values: list[float], end: float) -> None:
    assert top(values) == end
