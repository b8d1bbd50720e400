"""The documented path of each paper's collection: fetch it, plan its recipe, and run the recipe's first stages."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.chain.collection import documents, topics
from flows.chain.pretraining import pretraining_spans, retrieved_passages
from flows.fetch import fetch
from flows.recipe.load import load_recipe
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Passages
from tasks.session import Session, session
from tests.console import command
from tests.flows.publisher import Publisher, publish, zipped
from tests.flows.test_fetch import ADDRESSED, MSMARCO
from tests.tiny import save_backbone

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)
NQ = {
    "dpr-w100/docs": gzip.compress(b"id\ttext\ttitle\n1\tsalt melts ice\tRoads\n"),
    "dpr-w100/nq-train": gzip.compress(json.dumps([{
        "question": "what melts ice", "answers": ["salt"],
        "positive_ctxs": [{"passage_id": "1", "title": "Roads", "text": "salt melts ice", "score": 1000}],
    }]).encode()),
    "dpr-w100/nq-dev": gzip.compress(b"[]"),
}  # fmt: skip
DOCUMENT_TOPICS = {
    "msmarco-document/train/queries": gzip.compress(b"5\tcat?\n"),
    "msmarco-document/dev/queries": gzip.compress(b"7\twhat melts ice?\n"),
    "msmarco-document/trec-dl-2019/qrels": b"3 Q0 D1 2\n",
    "msmarco-document/trec-dl-2020/qrels": b"4 Q0 D1 3\n",
}
SCIFACT = zipped({
    "scifact/corpus.jsonl": '{"_id": "1", "title": "Roads", "text": "salt melts ice"}\n',
    "scifact/queries.jsonl": '{"_id": "7", "text": "what melts ice?"}\n',
    "scifact/qrels/test.tsv": "query-id\tcorpus-id\tscore\n7\t1\t1\n",
})  # fmt: skip


def parquet(**columns: list[str]) -> bytes:
    """Return a table's file."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def hub(publisher: Publisher, repository: str, revision: str, folder: str, files: dict[str, bytes]) -> None:
    """Publish a folder of a data set as Hugging Face's hub does."""
    listed = [{"type": "file", "path": f"{folder}/{name}", "size": len(content)} for name, content in files.items()]
    publisher.files[f"/api/datasets/{repository}/tree/{revision}/{folder}"] = json.dumps(listed).encode()
    for name, content in files.items():
        publisher.files[f"/datasets/{repository}/resolve/{revision}/{folder}/{name}"] = content


@pytest.fixture
def published(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Publisher:
    """A miniature of every collection; fetched ones are found below the test's folder."""
    publish(publisher, monkeypatch, {**MSMARCO, **NQ, **DOCUMENT_TOPICS, "beir/scifact": SCIFACT})
    publisher.files |= ADDRESSED | {
        "/msmarcoranking/msmarco-doctrain-qrels.tsv.gz": gzip.compress(b"5 0 D1 1\n"),
        "/msmarcoranking/msmarco-docdev-qrels.tsv.gz": gzip.compress(b"7 0 D1 1\n"),
        "/dpr/data/retriever/nq-dev.qa.csv": b"what melts ice\t['salt']\n",
        "/dpr/data/retriever/nq-test.qa.csv": b"what melts ice\t['salt']\n",
    }
    articles = parquet(id=["12"], title=["Salt"], text=["Salt melts ice. It is white."])
    hub(publisher, "wikimedia/wikipedia", "main", "20231101.en", {"train-00000-of-00001.parquet": articles})
    books = parquet(text=["it was a cold winter .", "the roads were white ."])
    hub(publisher, "bookcorpus/bookcorpus", "refs%2Fconvert%2Fparquet", "plain_text/train", {"0000.parquet": books})
    monkeypatch.setenv("PRETRIEVE_COLLECTIONS", str(tmp_path / "collections"))
    return publisher


def backbone(tmp_path: Path) -> Path:
    """Return the folder of a BERT."""
    (tmp_path / "backbone").mkdir()
    return save_backbone(tmp_path / "backbone")


PATHS = {
    "cot_mae_query_as_context": {"msmarco": "msmarco"},
    "cpdae_documents": {"msmarco_documents": "msmarco_documents"},
    "came_nq": {"natural_questions": "natural_questions", "wikipedia": "wikipedia"},
    "dup_mae": {"msmarco": "msmarco", "wikipedia_bookcorpus_msmarco": "wikipedia_bookcorpus_msmarco"},
    "retro_mae_beir": {"msmarco": "msmarco", "wikipedia_bookcorpus": "wikipedia_bookcorpus",
                       "beir/scifact": "beir/scifact"},
}  # fmt: skip
"""Recipes, and the collections that they read: the name for `fetch`, and the folder."""


@pytest.mark.parametrize("name", PATHS)
def test_what_is_fetched_is_planned_and_ingested(
    name: str, published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for collection, folder in PATHS[name].items():
        fetched = command(capsys, "fetch", collection, tmp_path / "collections" / folder)
        assert fetched.code == 0, fetched.err

    planned = command(capsys, "plan", name, "--store", tmp_path / "store")

    missing = [line for line in planned.out.splitlines() if line.startswith("not here: ") and "collections" in line]
    assert planned.code == 0, planned.err
    assert [line for line in missing if "beir" not in line] == []  # of BEIR, one collection of many is fetched here
    recipe, _ = load_recipe(name, [f"backbone.weights={backbone(tmp_path)}", "dataset.complete=false"])
    with session(Session(Store.open_or_new(tmp_path / "store"), recipe.execution, print_line=lambda line: None)):
        spans, passages = pretraining_spans(recipe), retrieved_passages(recipe)
        for split in recipe.dataset.eval_splits:
            topics(recipe.dataset, recipe.corpora.retrieve, split)
        documents(recipe.dataset, recipe.corpora.retrieve)
    assert list(read_rows(spans, Passages))
    assert list(read_rows(passages, Passages))


def test_a_recipe_with_titles_is_refused_without_them_and_says_what_to_do(
    published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "collections" / "msmarco"
    fetch("msmarco", folder, ["titles"])
    options = ("--store", tmp_path / "store")

    refused = command(capsys, "plan", "cot_mae_query_as_context", *options)

    assert refused.code == 2
    assert f"`pretrieve fetch msmarco_titles {folder}`" in refused.err
    assert "set split.titles=false" in refused.err
    change = ("--set", "split.titles=false")
    half = command(capsys, "plan", "cot_mae_query_as_context", *options, *change)
    assert "also set evaluate.bm25_without_titles=false" in half.err
    changes = (*change, "--set", "evaluate.bm25_without_titles=false")
    without = command(capsys, "plan", "cot_mae_query_as_context", *options, *changes)
    assert without.code == 0, without.err
    fetch("msmarco_titles", folder)
    assert command(capsys, "plan", "cot_mae_query_as_context", *options).code == 0


def test_titles_of_a_part_of_a_joined_collection_are_required(
    published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = tmp_path / "collections" / "wikipedia_bookcorpus_msmarco"
    fetch("msmarco", tmp_path / "collections" / "msmarco")
    fetch("wikipedia_bookcorpus_msmarco", joined, ["titles"])
    shutil.rmtree(joined / ".fetching", ignore_errors=True)
    options = ("--store", tmp_path / "store")

    refused = command(capsys, "plan", "dup_mae", *options, "--set", "split.pretrain_titles=every")

    assert refused.code == 2
    assert f"`pretrieve fetch msmarco_titles {joined}/msmarco`" in refused.err
