"""The Python API: runs, recipes, retrievers, evaluations and pseudo-queries, on the same store as the commands."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import flows.reproduce
import pretrieve
from flows.compare import compared
from flows.recipe.load import load_recipe
from flows.search import open_key, search
from pretrieve.runs import Checkpoint
from pretrieve.settings import as_changes, printing
from storage.artifact import Artifact
from storage.errors import UserError
from storage.formats.yaml_files import parse_yaml
from storage.store.marker import mark
from storage.store.store import Store
from storage.tables import Report
from tasks.runtime.progress import bar
from tests import finished_runs
from tests.flows.queries.test_versions import NAME, noted
from tests.flows.small_suite import make_suite
from tests.flows.test_search import TEXTS, built, given_retriever
from tests.in_process import pretrieve as command

__all__ = ["built"]


def test_a_recipe_with_changes_is_that_of_the_command_line() -> None:
    changed = pretrieve.recipe("quickstart").replace(seed=1, **{"pretrain.steps": 10, "dataset.path": Path("wheel")})

    expected, _ = load_recipe("quickstart", ["seed=1", "pretrain.steps=10", "dataset.path=wheel"])
    assert changed.settings == expected.model_dump(mode="json", by_alias=True)
    assert changed.settings["pretrain"]["steps"] == 10
    assert yaml.safe_load(changed.as_yaml())["seed"] == 1
    assert pretrieve.recipe("quickstart").settings["seed"] == 42


@pytest.mark.parametrize(
    "value", [1e-5, 2.5, True, None, "😀", "1e-5", "null", "a: b\n\nc", "", [1, 1e-9], {"a": "x"}, "long " * 100]
)
def test_a_value_of_a_change_is_read_as_it_was_given(value: object) -> None:
    (change,) = as_changes({"a": value})

    assert parse_yaml(change.removeprefix("a=")) == value


def test_a_plan_is_that_of_the_command(tmp_path: Path) -> None:
    planned = pretrieve.recipe("small/retro_mae").plan(store=tmp_path / "store")

    listed = command("plan", "small/retro_mae", "--store", str(tmp_path / "store"), "--json", seconds=60)
    known = planned.astype(object).where(planned.notna(), None)  # pandas has NaN for null
    assert known.to_dict("records") == json.loads(listed.out)["stages"]
    assert set(planned["state"]) == {"to build"}


@pytest.mark.parametrize("arguments", [{"pretrain.stepps": 1}, {"seed": "x"}, {"nowhere.at.all": 1}])
def test_a_wrong_change_is_the_error_of_the_command_line(arguments: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(pretrieve.UserError) as raised:
        pretrieve.recipe("quickstart").replace(**arguments)

    ((name, value),) = arguments.items()
    ended = command("plan", "quickstart", "--store", str(tmp_path), "--set", f"{name}={value}")
    assert ended.code == 2
    assert str(raised.value).split(": ")[-1] in ended.err


def test_a_finished_run_has_its_metrics_with_intervals(store: Store) -> None:
    report = finished_runs.run(store, "one")

    run = pretrieve.open_run("one", store=store.root)

    assert run.key == report.key
    assert list(run.metrics.columns) == ["run", "split", "metric", "value", "low", "high"]
    measured = run.metrics.set_index(["run", "metric"])
    assert set(measured["split"]) == {"dev"}
    rows = yaml.safe_load((report.path / "report.json").read_text())
    for row in rows["rows"]:
        assert measured.loc[row["run"], row["metric"]]["value"] == row["value"]
    for span in rows["intervals"]:
        assert measured.loc[span["run"], span["metric"]]["low"] == span["low"]
    assert (measured["low"] <= measured["value"]).all()
    with pytest.raises(UserError, match="one has trained no checkpoint of this name"):
        run["retriever_9"]
    assert "retriever_9" not in run
    assert run.get("retriever_9") is None
    with pytest.raises(UserError, match="FinishedRun: expected a checkpoint of a run"):
        pretrieve.load(run)  # type: ignore[arg-type]


def test_splits_of_other_collections_are_named_with_their_collection(store: Store) -> None:
    finished_runs.run(store, "one", transfer=["toy_2"])

    metrics = pretrieve.open_run("one", store=store.root).metrics

    assert list(dict.fromkeys(metrics["split"])) == ["dev", "toy_2/dev"]


@pytest.mark.parametrize("shown", [False, True])
def test_lines_and_bars_of_a_run_are_shown_or_not(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with printing(shown) as print_line, bar(what="training", unit="steps") as counter:
        print_line("train 1234")
        assert counter.disable == (not shown)
    assert capsys.readouterr().err == ("train 1234\n" if shown else "")
    with bar(what="training", unit="steps") as counter:
        assert not counter.disable


def test_two_runs_are_compared_as_by_the_command(store: Store, tmp_path: Path) -> None:
    finished_runs.run(store, "one")
    finished_runs.run(store, "two", noise=0.8)
    one, two = (pretrieve.open_run(name, store=store.root) for name in ("one", "two"))

    comparison = pretrieve.compare(one, two, store=tmp_path / "elsewhere")

    assert comparison.content["splits"] == compared("one", "two", store)["splits"]
    assert "title" not in set(comparison.settings["setting"])
    rows = comparison.metrics.set_index(["run", "metric"])
    for run in (one, two):
        measured = run.metrics.set_index(["run", "metric"])
        assert all(
            measured.loc[key, "value"] == rows.loc[key]["first" if run is one else "second"] for key in rows.index
        )
    assert rows["difference"].equals(rows["second"] - rows["first"])
    tested = rows.dropna(subset="p")
    assert "bm25" not in tested.index.get_level_values("run")
    assert (tested["p_holm"] >= tested["p"]).all()
    assert (pretrieve.compare("one", "one", store=store.root).metrics["difference"] == 0).all()


def test_reproduce_returns_the_run_of_the_command_and_starts_no_server(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    report: Artifact[Report] = finished_runs.run(store, "one")
    calls: list[tuple[object, ...]] = []

    def reproduced(name: str, folder: Path, changes: list[str], **options: object) -> Path:
        calls.append((name, folder, changes, options["with_server"]))
        return store.root / "reports" / "one" / "report.html"

    monkeypatch.setattr("pretrieve.runs.reproduced", reproduced)

    run = pretrieve.reproduce("quickstart", store=store.root, set={"seed": 7}, progress=False)

    assert calls == [("quickstart", store.root, ["seed=7"], False)]
    assert run.key == report.key
    assert run.page == store.root / "reports" / "one" / "report.html"


def test_without_a_server_stages_run_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is missing is built without the flow, which would start a server."""
    built_jobs: list[int] = []

    def no_flow(*arguments: object) -> None:
        raise AssertionError("a flow was started")

    monkeypatch.setattr(flows.reproduce, "as_flow", no_flow)
    monkeypatch.setattr(flows.reproduce, "build", lambda jobs, name, current: built_jobs.append(len(jobs)))
    (tmp_path / "data").mkdir()
    suite = make_suite(tmp_path / "data")
    qrels = suite.parent / "one" / "qrels"
    (qrels / "train.tsv").write_text((qrels / "test.tsv").read_text())
    changes = {
        "dataset.path": suite.parent / "one", "backbone.weights": suite.parent / "ours",
        "dataset.eval_splits": ["test"],
        "backbone.layers": None, "split.max_tokens": 32, "split.titles": False, "queries": None, "bm25.engine": "bm25s",
        "pretrain": None, "contexts": None, "rounds.0.start": "backbone", "rounds.1.start": "backbone",
        "encode.passage_max_tokens": 32, "split.pretrain_titles": None,
        **{f"rounds.{number}.train.passage_max_tokens": 32 for number in range(4)},
        "evaluate.comparisons": [],
    }  # fmt: skip

    with pytest.raises(TypeError, match="always has a report"):
        pretrieve.reproduce("small/beir", store=tmp_path / "store", set=changes, progress=False)
    assert built_jobs[0] > 10


def test_a_retriever_encodes_and_searches_as_the_commands_do(built: dict[str, Artifact[object]], store: Store) -> None:
    retriever = pretrieve.load(built["retriever"].key[:10], store=store.root)

    expected = search(open_key(built["retriever"].key, store), "river", store, top=2)
    assert retriever.search("river", top_k=2) == expected
    with pytest.raises(UserError, match="expected at least 1 passage to show, found 0"):
        retriever.search("river", top_k=0)
    assert set(retriever.views) == {"dense", "late", "lexical"}
    with pytest.raises(UserError, match=r"not one dense vector; representations\(\) has all"):
        retriever.encode_queries(["river"])
    encoded = retriever.representations([TEXTS[0], TEXTS[1]], "passage")
    assert encoded.dense is not None
    assert len(encoded.dense) == 2
    with pytest.raises(UserError, match="expected a list of texts"):
        retriever.representations("river", "query")


def test_a_retriever_keeps_its_index_open(
    built: dict[str, Artifact[object]], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its temporary files, which a search needs and which take long to write, are written once for all views."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pretrieve.load(built["retriever"].key, store=store.root) as retriever:
        first = retriever.search("river")
        folders = list(tmp_path.glob("pretrieve-*"))
        assert len(folders) == 1
        assert retriever.search("river") == first
        assert next(iter(retriever.search("river", view="dense")[0].scores)) == "dense"
        assert list(tmp_path.glob("pretrieve-*")) == folders
    assert not list(tmp_path.glob("pretrieve-*"))
    assert retriever.search("river") == first
    del retriever
    assert not list(tmp_path.glob("pretrieve-*"))


def test_a_folder_is_loaded_and_evaluated(tmp_path: Path) -> None:
    suite = make_suite(tmp_path)
    retriever = pretrieve.load(tmp_path / "ours", store=tmp_path / "store")

    vectors = retriever.encode_passages(["river mountain", "castle", "river mountain"])
    assert vectors.shape == (3, 32)
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.allclose(vectors[0], vectors[1])
    assert retriever.encode_queries(["castle"]).shape == (1, 32)
    assert retriever.encode_queries([]).shape == (0, 32)
    with pytest.raises(UserError, match=r"texts\[1\]: expected a text, found nan"):
        retriever.encode_queries(["castle", float("nan")])  # type: ignore[list-item]
    with pytest.raises(UserError, match="no run of the store has encoded passages with this model"):
        retriever.search("river")

    mark(tmp_path / "store")
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "model").symlink_to(tmp_path / "ours")
    (tmp_path / "adapted" / "index.json").write_text(json.dumps({"store": str(tmp_path / "store")}))
    adapted = pretrieve.load(tmp_path / "adapted")
    of_another_store = Checkpoint("other", "f" * 24, tmp_path / "other", tmp_path / "elsewhere")

    measured = pretrieve.evaluate(
        [retriever, of_another_store, adapted], suite=str(suite), only=["one"], store=tmp_path / "store",
        progress=False,
    )  # fmt: skip
    assert set(measured.metrics["run"]) == {"ours", "other", "adapted"}
    assert set(measured.metrics["split"]) == {"one/test"}
    assert set(measured.comparisons["baseline"]) == {"ours"}
    content = measured.content["rows"]
    assert measured.metrics["value"].tolist() == [row["value"] for row in content]
    only_one = pretrieve.evaluate([retriever], suite=str(suite), only="one", store=tmp_path / "store", progress=False)
    assert set(only_one.metrics["split"]) == {"one/test"}
    for wrong in ("bm25", []):
        with pytest.raises(UserError, match="models: expected a list of models"):
            pretrieve.evaluate(wrong, suite=str(suite), store=tmp_path / "store")
    with pytest.raises(UserError, match="the suite has no collection of this name"):
        pretrieve.evaluate([retriever], suite=str(suite), only=["four"], store=tmp_path / "store")


def test_a_checkpoint_without_vectors_cannot_be_searched(store: Store) -> None:
    retriever = pretrieve.load(given_retriever().key, store=store.root)

    with pytest.raises(UserError, match="no passages were encoded with this checkpoint"):
        retriever.search("river")


def test_pseudo_queries_are_read_when_they_are_needed(store: Store) -> None:
    queries = noted(3, store)
    corpus = pretrieve.queries(NAME, store=store.root)
    assert corpus.name == f"{NAME}@1"
    assert len(corpus) == 3

    assert corpus.version.queries.key == queries.key
    with pytest.raises(UserError, match="has versions 1 to 1"):
        pretrieve.queries(f"{NAME}@2", store=store.root)
