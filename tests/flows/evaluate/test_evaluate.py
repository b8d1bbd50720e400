"""`pretrieve evaluate`: any retriever on a suite of collections, the numbers and what is built for them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from prefect.settings import PREFECT_API_URL, temporary_settings
from transformers import BertModel

from flows.deployed import evaluate_models
from flows.evaluate.evaluate import published, requested, run
from storage.errors import UserError
from storage.store.store import Store
from tasks.session import Session, session
from tests.flows.small_suite import EXECUTION, TEXTS, make_suite, question
from tests.services.servers import Service, post
from tests.tiny import fast_tokenizer
from tests.warm import run as run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suite three.yaml, its collections and models."""
    return make_suite(tmp_path_factory.mktemp("suite")).parent


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    """The report of both models, evaluated without a server."""
    models = [str(folder / "ours"), f"theirs={folder / 'other'}"]
    request = requested(models, str(folder / "three.yaml"), folder / "store", [], False, [])
    with session(Session(Store(folder / "store"), EXECUTION)) as current:
        page = published(request, request.evaluate(), current)
    report: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())
    return report


def ndcg(model_folder: Path, texts: list[str]) -> float:
    """By transformers and by hand: every query has one relevant document, whose gain is 1 over log2(1 + its rank)."""
    model, tokenizer = BertModel.from_pretrained(model_folder), fast_tokenizer()

    def vector(text: str) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0, 0].double().numpy()

    documents, gains = np.stack([vector(text) for text in texts]), []
    for number in range(len(texts)):
        scores = documents @ vector(question(texts, number))
        rank = 1 + int((scores > scores[number]).sum())
        gains.append(1 / math.log2(1 + rank) if rank <= 10 else 0.0)
    return float(np.mean(gains))


def values(content: dict[str, Any], metric: str = "nDCG@10") -> dict[tuple[str, str], float]:
    return {(row["dataset"], row["run"]): row["value"] for row in content["rows"] if row["metric"] == metric}


def test_ndcg_equals_that_computed_from_the_definition(folder: Path, content: dict[str, Any]) -> None:
    measured = values(content)

    for name, texts in TEXTS.items():
        assert math.isclose(measured[name, "ours"], ndcg(folder / "ours", texts), abs_tol=1e-6)
        assert math.isclose(measured[name, "theirs"], ndcg(folder / "other", texts), abs_tol=1e-6)
    assert len(set(measured.values())) > 3  # the test could tell them apart


def test_a_group_is_the_mean_of_its_members_and_the_average_that_of_the_columns(
    folder: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = values(content)
    pair = (measured["two", "ours"] + measured["three", "ours"]) / 2

    run([str(folder / "ours"), f"theirs={folder / 'other'}"], str(folder / "three.yaml"), folder / "store")

    printed = capsys.readouterr()
    assert "0 to build" in printed.err  # so no server is started
    [line] = [line for line in printed.out.splitlines() if "ours" in line and "│" in line]
    cells = [cell.strip().rstrip("▲▼") for cell in line.split("│")[1:-1]]
    expected = [measured["one", "ours"], pair, (measured["one", "ours"] + pair) / 2]
    assert cells == ["ours", *(f"{value:.3f}" for value in expected)]
    assert str(folder / "store" / "reports" / "evaluate" / "three" / "report.html") in printed.out


def test_models_share_the_artifacts_of_a_collection(folder: Path, content: dict[str, Any]) -> None:
    counts = {name: len([*(folder / "store" / name).iterdir()]) for name in ("split_corpus", "encode", "evaluate")}

    assert counts == {"split_corpus": 3, "encode": 6, "evaluate": 3}
    assert {step["key"] for step in content["stages"]} >= set(content["inputs"].values())


def test_a_missing_collection_is_an_error_unless_missing_ones_are_skipped(folder: Path, tmp_path: Path) -> None:
    gone = ["collections.1.path=nowhere/two"]

    with pytest.raises(UserError, match=r"two: collections\.1\.path: no data set at .*--skip-missing"):
        requested([str(folder / "ours")], str(folder / "three.yaml"), tmp_path, [], False, gone)
    request = requested([str(folder / "ours")], str(folder / "three.yaml"), tmp_path, [], True, gone)
    assert [of.name for of in request.collections] == ["one", "three"]
    assert "nowhere/two" in request.absent["two"]
    with pytest.raises(UserError, match="none of its collections is here"):
        requested([str(folder / "ours")], str(folder / "three.yaml"), tmp_path, ["two"], True, gone)


def test_a_number_of_documents_other_than_the_official_one_is_an_error_before_encoding(
    folder: Path, tmp_path: Path
) -> None:
    changes = ["collections.0.documents=13"]
    request = requested([str(folder / "ours")], str(folder / "three.yaml"), tmp_path / "store", ["one"], False, changes)

    with session(Session(Store(tmp_path / "store"), EXECUTION)), pytest.raises(UserError, match=r"the 13 .*found 12"):
        request.evaluate()
    assert not (tmp_path / "store" / "encode").exists()


def with_expected(folder: Path, value: float) -> list[str]:
    return [f"collections.0.expected={{ours: {{nDCG@10: {value:.6f}}}}}"]


def test_a_value_other_than_the_expected_one_gives_exit_code_1(
    folder: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = values(content)["one", "ours"]
    models = [str(folder / "ours"), f"theirs={folder / 'other'}"]
    suite, store = str(folder / "three.yaml"), folder / "store"

    run(models, suite, store, changes=with_expected(folder, measured + 0.0009))
    assert "expected" not in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        run(models, suite, store, changes=with_expected(folder, measured + 0.002))
    assert ended.value.exit_code == 1
    assert f"measured {measured:.4f}" in " ".join(capsys.readouterr().out.split())


def test_a_broken_model_is_refused_before_anything_is_read(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder / "ours", tmp_path / "broken"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    done = run_command(
        tmp_path,
        "evaluate",
        str(broken),
        "--suite",
        str(folder / "three.yaml"),
        PRETRIEVE_STORE=str(tmp_path / "store"),
    )

    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "broken" in line]
    assert f"{weights}: expected weights as safetensors, found a file that is damaged or cut off" in line
    assert not [*(tmp_path / "store").glob("[a-z]*/*/manifest.json")]


@pytest.mark.slow
def test_the_command_builds_only_the_stages_of_a_new_system(
    folder: Path, content: dict[str, Any], tmp_path: Path, prefect_server: Service
) -> None:
    """A real run of the command line, with BM25 and a model whose artifacts are in the store."""
    shutil.copytree(folder / "store", tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob("*/*/manifest.json")}
    arguments = ["bm25", str(folder / "ours"), "--suite", str(folder / "three.yaml"), "--only", "one"]

    done = run_command(
        tmp_path, "evaluate", *arguments, PREFECT_API_URL=prefect_server.url, PRETRIEVE_STORE=str(tmp_path / "store")
    )

    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    report = json.loads((tmp_path / "store" / "reports" / "evaluate" / "three" / "report.json").read_text())
    built = [step["stage"] for step in report["stages"] if not step["cached"]]
    assert built == ["index", "search", "evaluate"]
    assert values(report)["one", "ours"] == values(content)["one", "ours"]
    assert values(report)["one", "bm25"] > 0.4  # every question has a word of its document
    assert "bm25" in done.stdout


@pytest.mark.slow
def test_the_deployed_flow_shows_its_table_in_the_ui(
    folder: Path, content: dict[str, Any], tmp_path: Path, prefect_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "store", tmp_path / "store")
    monkeypatch.setenv("PRETRIEVE_STORE", str(tmp_path / "store"))
    api = f"{prefect_server.url.removesuffix('/api')}/api"

    with temporary_settings({PREFECT_API_URL: api}):
        evaluate_models(models=[str(folder / "ours")], suite=str(folder / "three.yaml"))

    report = json.loads((tmp_path / "store" / "reports" / "evaluate" / "three" / "report.json").read_text())
    assert values(report)["one", "ours"] == values(content)["one", "ours"]
    [table] = post(api, "artifacts", artifacts={"key": {"any_": ["three-table"]}})
    assert "| ours |" in table["data"]
