"""What the UI shows of a run: the metrics compared with the paper's, and the graph of its artifacts."""

from __future__ import annotations

import re
import socket
from typing import Any
from xml.etree import ElementTree

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect_server.ui_artifacts import lineage, measured_on, metrics_table, show_lineage
from tasks.report.page.lineage_graph import Lane, drawing, input_rows, lanes
from tasks.session import Done

SVG = "{http://www.w3.org/2000/svg}"


def report(**changes: Any) -> dict[str, Any]:
    """What these tables read of a report."""
    values = {("bm25", "MRR@10"): 0.187, ("dense", "MRR@10"): 0.3914, ("dense", "recall@50"): 0.86}
    rows = [{"run": run, "metric": metric, "value": value, "split": "dev", "queries": 6980}
            for (run, metric), value in values.items()]  # fmt: skip
    return {
        "rows": rows, "recipe": {"title": "A title"}, "headline": {"main": "dense"},
        "reported": {"source": "Table 1"},
        "beside": [{"run": "dense", "metric": "MRR@10", "ours": 0.3914, "theirs": 0.394},
                   {"run": "dense", "metric": "nDCG@10 on TREC DL 2019", "ours": None, "theirs": 0.709}],
    } | changes  # fmt: skip


def done(stage: str, key: str, *inputs: Any, **changes: Any) -> Done:
    values: dict[str, Any] = {"round": "", "cached": False, "seconds": 1.5, "rows": None, "inputs": list(inputs)}
    return Done(stage=stage, key=key, **values | changes)


RUN = [
    done("ingest_corpus", "a" * 24, "source/00", cached=True, rows=3004),
    done("split_corpus", "b" * 24, f"ingest_corpus/{'a' * 24}", rows=3100),
    done("index", "c" * 24, f"split_corpus/{'b' * 24}", None),
    done("train", "d" * 24, f"split_corpus/{'b' * 24}", round="<retriever> & 1"),
    done("evaluate", "e" * 24, [f"train/{'d' * 24}", f"index/{'c' * 24}", f"train/{'d' * 24}"]),
]


def test_the_papers_number_is_next_to_ours_with_the_difference() -> None:
    table = [list(row.values()) for row in metrics_table(report())]

    assert table == [
        ["dense", "MRR@10", "0.391", "0.394", "−0.003"],
        ["dense", "nDCG@10 on TREC DL 2019", "not measured", "0.709", ""],
        ["bm25", "MRR@10", "0.187", "", ""],
        ["dense", "recall@50", "0.860", "", ""],
    ]


def test_the_description_says_what_was_measured_on_and_whose_numbers_stand_there() -> None:
    assert measured_on(report()).startswith("A title: 6,980 queries of split dev. Paper: Table 1;")
    assert measured_on(report(beside=[])).endswith("reports no numbers of a paper.")


def test_each_stage_is_known_by_the_rows_of_what_it_was_made_of() -> None:
    assert input_rows(RUN) == [[], [0], [1], [1], [2, 3]]


def test_a_line_goes_from_the_maker_to_the_last_reader_in_the_first_free_column() -> None:
    assert lanes(input_rows(RUN)) == [Lane(0, 0, [1]), Lane(0, 1, [2, 3]), Lane(1, 2, [4]), Lane(0, 3, [4])]


def test_the_drawing_has_a_row_for_each_stage_and_shows_what_was_built() -> None:
    root = ElementTree.fromstring(drawing(RUN))

    words = [element.text for element in root.iter(f"{SVG}text")]
    dots = [element.get("class") for element in root.findall(f"{SVG}circle")]
    paths = [element.get("d") for element in root.iter(f"{SVG}path")]
    assert words[:10] == [
        "1",
        "ingest_corpus",
        "aaaaaaaa",
        "1.5 s",
        "3,004",
        "2",
        "split_corpus",
        "bbbbbbbb",
        "1.5 s",
        "3,100",
    ]
    assert "train (<retriever> & 1)" in words
    assert dots == ["stored", *["built"] * 4]
    assert len(paths) == 4
    assert len(list(root.iter(f"{SVG}circle"))) == 5 + 5  # stages, and readings


def test_the_page_has_the_drawing_and_a_table_of_the_same() -> None:
    page = lineage("small/beir", RUN)

    assert page.startswith("**small/beir: 5 stages, 4 built by this run, 1 cached**")
    assert re.search(r"\n!\[[^\]]*\]\(data:image/svg\+xml;base64,[A-Za-z0-9+/=]+\)\n", page)
    assert "| 5 | evaluate | 3, 4 | `eeeeeeee` | built | 1.5 s |  |" in page


def test_a_hundred_stages_are_a_small_artifact() -> None:
    many = [done("train", f"{number:024x}", *[f"train/{earlier:024x}" for earlier in range(max(0, number - 9), number)])
            for number in range(100)]  # fmt: skip

    assert len(lineage("came_sweeps", many)) < 120_000


def test_a_server_that_is_away_fails_no_run() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{unused.getsockname()[1]}/api"})
        with away, pytest.warns(FutureWarning, match="outside of a flow"):
            show_lineage("small/beir", RUN)
