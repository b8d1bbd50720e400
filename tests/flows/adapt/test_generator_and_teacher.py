"""`pretrieve adapt` with a query generator and a cross-encoder, from texts to a model, an index and a report."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizer, T5Config

import pretrieve
from flows.adapt.recipes import SIZES
from flows.adapt.run import adapt
from flows.browse.loading import contents_of
from flows.browse.queries import pseudo_queries
from flows.finished_runs import finished_run
from flows.queries.versions import find_version
from flows.recipe.load import load_recipe
from storage.artifact import Manifest
from storage.datasets import beir
from storage.rows import read_rows
from storage.store import sources
from storage.store.lookup import artifact, must_exist
from storage.store.store import Store
from storage.tables import PseudoQueries, Queries, TeacherScores
from tasks.pseudo_queries.generators.copy_init import copying_t5
from tasks.runtime.progress import drawing
from tests.killed_adaptation import request_of
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tiny import SPECIALS, save_backbone

pytestmark = pytest.mark.slow
WORDS = [
    a + b + c for a in ("ba", "ko", "ri", "tu", "me", "la") for b in ("na", "lo", "pi", "ge", "du") for c in "rnlmtgkd"
]
DOCUMENTS, WIDTH = 80, 128
CANDIDATES = SIZES[-1].candidates("the/teacher")


def save_copying_t5(folder: Path) -> None:
    """A generator without any training: it repeats runs of the words of its passage."""
    pieces = [*SPECIALS, *WORDS]
    BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
    embeddings = torch.randn(len(pieces), WIDTH, generator=torch.Generator().manual_seed(3))
    config = T5Config(
        vocab_size=len(pieces), d_model=WIDTH, d_kv=WIDTH // 2, num_heads=2, d_ff=WIDTH, num_layers=2, dropout_rate=0.0,
        decoder_start_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = copying_t5(embeddings, config, seed=1)
    with torch.no_grad():
        model.decoder.final_layer_norm.weight.mul_(1.3)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, the three models, and an adaptation with them in `out`; what it said is in `printed` and `lines`.

    It has no server, so none is asked, not even one that the user has named.
    """
    folder, random = tmp_path_factory.mktemp("given"), np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 10, replace=False)) for _ in range(DOCUMENTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name in ("start", "generator", "teacher"):
        (folder / name).mkdir()
    save_backbone(folder / "start", spread=0.2, pooling="mean")
    save_copying_t5(folder / "generator")
    folder_of(tiny_cross_encoder(), folder / "teacher")
    request = replace(
        request_of(folder), judgements=None, generator=str(folder / "generator"), teacher=str(folder / "teacher")
    )
    printed, lines = io.StringIO(), list[str]()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed), drawing(False):
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        done = adapt(request, folder / "store", lines.append, with_server=False)
    assert done.page == folder / "out" / "report.html"
    (folder / "printed").write_text(printed.getvalue())
    (folder / "lines").write_text("\n".join(lines))
    return folder


def rounds(folder: Path) -> dict[str, Manifest]:
    """The manifests of the checkpoints of the rounds that were trained, by name."""
    store = Store(folder / "store")
    run = finished_run(json.loads((folder / "out" / "report.json").read_text())["run"], store)
    return {name: must_exist(run.checkpoints[name], store) for name in CANDIDATES}


def test_what_it_says_goes_to_the_caller(folder: Path) -> None:
    assert (folder / "printed").read_text() == ""
    lines = (folder / "lines").read_text()
    assert f"{request_of(folder).name}_queries@1: " in lines
    generated = rf"{3 * DOCUMENTS} queries to generate for {DOCUMENTS} passages, 0 are cached; about \d.* (s|min) at "
    assert re.search(generated, lines)


def test_the_queries_are_the_generated_ones_that_find_their_passage(folder: Path) -> None:
    store, training = Store(folder / "store"), folder / "out" / "training"
    rows = list(read_rows(find_version(f"{request_of(folder).name}_queries", store).queries, PseudoQueries))
    kept = {row["query"] for row in rows if row["kept"]}
    texts = {row["query_id"]: row["text"] for row in beir.queries(training, "train")}
    train, held_out = ({row["query_id"] for row in beir.qrels(training, name)} for name in ("train", "heldout"))

    assert {row["revision"] for row in rows} == {sources.weights(str(folder / "generator")).key}
    assert {row["kept"] for row in rows if row["round_trip"]} == {True}
    assert {row["kept"] for row in rows if not row["round_trip"]} == {False}
    assert set(texts.values()) <= kept
    assert texts.keys() == train | held_out
    assert min(len(train), len(held_out)) >= 10
    for manifest in rounds(folder).values():
        read = read_rows(artifact(str(manifest.inputs["queries"]), store), Queries)
        assert {row["query_id"]: row["text"] for row in read} == {name: texts[name] for name in train}


def test_one_round_is_distilled_from_the_scores_of_the_cross_encoder(folder: Path) -> None:
    store = Store(folder / "store")
    recipe, _ = load_recipe(str(folder / "out" / f"{request_of(folder).name}.yaml"))
    of_teacher = f"source/{sources.weights(str(folder / 'teacher')).key}"

    assert [bool(round_.train and round_.train.distillation) for round_ in recipe.rounds] == [False, False, True]
    plain, distilled = rounds(folder).values()
    scores = must_exist(str(distilled.inputs["scores"]), store)
    scored = list(read_rows(artifact(scores.reference, store), TeacherScores))
    train = {row["query_id"] for row in beir.qrels(folder / "out" / "training", "train")}
    assert scores.inputs["teacher"] == of_teacher
    assert distilled.settings["distillation"]["targets"] == "margins"
    assert {row["query_id"] for row in scored} == train
    assert np.std([row["score"] for row in scored]) > 0.1
    assert not plain.inputs["scores"]


def test_report_model_and_index_are_complete(folder: Path) -> None:
    out, rows = folder / "out", [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    report = json.loads((out / "report.json").read_text())

    assert report["method"] == f"generated by {folder / 'generator'}"
    assert report["request"]["teacher"] == str(folder / "teacher")
    assert {row["run"] for row in report["rows"]} == {"start", *CANDIDATES, "bm25"}
    assert report["verdict"].split(" (")[0].split(";")[0] in (out / "report.html").read_text().replace("&#39;", "'")
    assert f"generated by {folder / 'generator'}" in (out / "report.html").read_text()
    answers = pretrieve.load(out).search(rows[3]["text"], top_k=DOCUMENTS)
    assert {answer.text for answer in answers} == {row["text"] for row in rows}
    contents = contents_of(str(out), folder / "nowhere")
    assert [collection.name for collection in contents.collections] == ["your documents", "held-out pseudo-queries"]
    assert report["request"]["teacher"] in (out / "report.html").read_text()


def test_the_generated_queries_of_a_passage_are_browsed(folder: Path) -> None:
    store, contents = Store(folder / "store"), contents_of(str(folder / "out"), folder / "nowhere")
    rows = list(read_rows(find_version(f"{request_of(folder).name}_queries", store).queries, PseudoQueries))
    passage = rows[0]["passage_id"]

    browsed = pseudo_queries(contents, contents.collections[0], passage)

    assert [row["query"] for row in browsed] == [row["query"] for row in rows if row["passage_id"] == passage]
