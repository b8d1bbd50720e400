"""`pretrieve evaluate --collection`: one collection without a suite file, and options that do not go together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flows.evaluate import evaluate
from tests.console import command
from tests.flows.evaluate.test_evaluate import ndcg
from tests.flows.small_suite import TEXTS, make_suite

WRONG = [["--split", "dev"], ["--collection", "x"], ["--suite", "small", "--collection", "x", "--split", "dev"], []]


def test_a_model_is_measured_on_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_suite(tmp_path)
    qrels = tmp_path / "one" / "qrels"
    (qrels / "dev.tsv").write_text("".join((qrels / "test.tsv").read_text().splitlines(keepends=True)[:4]))
    monkeypatch.setattr(evaluate, "as_flow", lambda name, title, current, body: body())  # without a server
    options = ["--collection", tmp_path / "one", "--split", "test", "--split", "dev", "--store", tmp_path / "store"]
    tokens = ["--set", "encode={query_max_tokens: 512, passage_max_tokens: 512}", "--set", "split.max_tokens=null"]

    ended = command(capsys, "evaluate", tmp_path / "ours", *options, *tokens)

    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "store" / "reports" / "evaluate" / "one-test-dev" / "report.json").read_text())
    values = {row["dataset"]: row["value"] for row in report["rows"] if row["metric"] == "nDCG@10"}
    assert list(values) == ["one/test", "one/dev"]
    assert math.isclose(values["one/test"], ndcg(tmp_path / "ours", TEXTS["one"]), abs_tol=1e-6)


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_options_that_do_not_go_together(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ended = command(capsys, "evaluate", "bm25", *options)

    assert ended.code == 2
    assert "expected --suite NAME, or --collection DIR with --split NAME" in ended.err


def test_a_collection_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_suite(tmp_path)
    store = ["--store", tmp_path / "store"]

    nowhere = command(capsys, "evaluate", "bm25", "--collection", "nowhere", "--split", "dev", *store)
    no_split = command(capsys, "evaluate", "bm25", "--collection", tmp_path / "one", "--split", "dev", *store)
    only = command(capsys, "evaluate", "bm25", "--collection", "one", "--split", "dev", "--only", "one", *store)

    assert (nowhere.code, no_split.code, only.code) == (2, 2, 2)
    assert nowhere.err.startswith("pretrieve: --collection nowhere: no data set at ")
    assert "--set" not in nowhere.err
    assert "the splits there are test" in no_split.err
    assert not any("--skip-missing" in ended.err for ended in (nowhere, no_split))
    assert "--only: it chooses collections of a suite" in only.err
