"""`pretrieve compare`: what two finished runs differ in, in the terminal and on a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.compare import compared, show_comparison
from storage.errors import UserError
from storage.store.store import Store
from tasks.report.page.compare_page import notes
from tasks.session import Execution, Session, session
from tests.finished_runs import run


def test_two_runs_are_compared(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, "one", noise=0.5)
    run(store, "two", noise=3.0)
    run(store, "three", noise=3.0, seed=7)
    content = compared("one", "two", store)

    assert content["settings"] == [("rounds.retriever_1.train.noise", "0.5", "3.0")]
    counts = {artifact["stage"]: artifact["counts"] for artifact in content["artifacts"]["stages"]}
    assert counts["search"] == [1, 2, 2]
    assert counts["ingest_qrels"] == [1, 0, 0]
    assert counts["evaluate"] == counts["report"] == [0, 1, 1]
    assert [sorted(name.partition("/")[0] for name in names) for names in content["artifacts"]["first"]] == (
        [["search", "search"]] * 2  # what was made of these follows from them
    )
    (split,) = content["splits"]
    rows = {(row["runs"][0], row["metric"]): row for row in split["rows"]}
    assert len(rows) == 4 * 2
    assert rows["bm25", "MRR@10"]["p"] is None
    assert rows["retriever_1", "MRR@10"]["difference"] < 0
    assert rows["retriever_1", "MRR@10"]["p_holm"] < 0.05
    assert rows["both", "MRR@10"]["p"] is not None

    page = tmp_path / "page.html"
    show_comparison("one", "two,three", store.root, page)
    output = " ".join(capsys.readouterr().out.split())
    assert "A Title of one" in output
    assert "seed 1 1, 7" in output
    assert "search 1 2 4" in output
    assert "only A has" not in output
    assert "the same run in both: bm25" in output
    assert "bm25 MRR@10" not in output
    assert output.index("retriever_2 MRR@10") < output.index("retriever_1 MRR@10")  # the headline's run is first
    assert " ± " in output
    assert "▼" in output
    assert "standard deviation of the means of several seeds" in page.read_text()
    assert "<script" not in page.read_text()


def test_a_store_may_be_below_a_folder_called_reports(tmp_path: Path) -> None:
    store = Store(tmp_path / "reports" / "store")
    with session(Session(store, Execution(device="cpu"))):
        built = run(store, "one")

    for folder in (built.path, store.root / "reports" / "one"):
        assert compared("one", str(folder), store)["settings"] == []


def test_a_run_is_named_by_recipe_key_or_folder(store: Store, tmp_path: Path) -> None:
    built = run(store, "one")
    names = ["one", built.key, built.key[:10], str(built.path), str(store.root / "reports" / "one")]
    for name in names:
        content = compared("one", name, store)
        assert content["settings"] == []
        assert content["artifacts"]["first"] == [[], []]
    # a folder says which store it is in
    assert compared(str(built.path), str(built.path), Store(tmp_path / "elsewhere"))["splits"]


def test_a_run_of_a_recipe_in_a_folder_is_found_by_its_name(store: Store, tmp_path: Path) -> None:
    run(store, "small/one")

    assert compared("small/one", "small/one", store)["settings"] == []
    folder = str(store.root / "reports" / "small" / "one")
    assert compared(folder, folder, Store(tmp_path / "elsewhere"))["settings"] == []


def test_what_cannot_be_compared_is_named(store: Store) -> None:
    run(store, "one")
    run(store, "small/fewer", queries=20)
    run(store, "elsewhere", split="test")
    other = run(store, "other", noise=2.0, rounds=[{"name": "retriever_1", "train": {"noise": 2.0}}])
    refused = {
        ("one", "small/fewer"): "toy/dev: the runs were measured by different qrels",
        ("one", "elsewhere"): "nothing to compare: A was measured on toy/dev, B on toy/test",
        ("one,other", "one"): "differ only in seeds; one and other differ in rounds.retriever_1.train.noise",
        ("one,one", "one"): "one,one: one is there twice; name the run of each seed once",
        ("one", ""): "RUN '': expected a recipe's name",
        ("one", "none"): "none: expected a recipe's name, a report's key or a folder with report.json; .*small/fewer",
        ("one", next((store.root / "evaluate").iterdir()).name): "evaluate builds Metrics, not a report",
    }
    for (first, second), output in refused.items():
        with pytest.raises(UserError, match=output):
            compared(first, second, store)
    (store.root / "report" / other.key / "report.json").unlink()
    with pytest.raises(UserError, match="is missing or damaged"):
        compared("one", "other", store)
    (store.root / "reports" / "one" / "report.json").write_text("[]")
    with pytest.raises(UserError, match=r"reports/one/report.json: expected the report of a run"):
        compared("one", "one", store)


def test_rows_of_other_names_are_compared_where_they_are_the_headlines(store: Store) -> None:
    run(store, "one")
    headline = {"run": "retriever_1", "baseline": "bm25", "metric": "MRR@10"}
    run(store, "two", noise=0.2, headline=headline)
    run(store, "three", last="retriever_3", headline={**headline, "run": "retriever_3"})
    content = compared("one", "two", store)
    assert ["retriever_2", "retriever_1"] in [row["runs"] for row in content["splits"][0]["rows"]]
    content = compared("one", "three", store)
    assert ["retriever_2", "retriever_3"] in [row["runs"] for row in content["splits"][0]["rows"]]
    assert notes(compared("two", "three", store))[-1] == "only A has retriever_2 on toy/dev"


def test_a_recipe_without_a_report_is_named(store: Store) -> None:
    run(store, "one")

    with pytest.raises(UserError, match=r"quickstart: no report in .*; `pretrieve reproduce quickstart` builds it"):
        compared("one", "quickstart", store)
