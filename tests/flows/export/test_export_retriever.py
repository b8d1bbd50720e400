"""An exported retriever ranks in sentence-transformers exactly as `pretrieve search` does, or does not open there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.search import open_key, search
from models.representation import Pooling
from models.retrievers import load, retriever, towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Checkpoint, Passages, passage_text
from tasks.retrieval.encode import Encoding, encode
from tasks.stage import stage
from tests.console import command
from tests.tiny import RETRIEVERS, WORDS, save_tokenizer, tiny_bert, tiny_retriever, tiny_tokenizer

LENGTHS = Encoding(query_max_tokens=6, passage_max_tokens=9)
QUESTIONS = ["river", "castle king", "music planet ocean tree king letter stone bread winter"]


class Kind(Settings):
    """A kind of retriever: encoders, pooling and representations."""

    sharing: towers.Towers = "siamese"
    pooling: Pooling = "cls"
    views: str = "dpr"
    pretrained: bool = False
    """Without the file of a trained retriever."""


@stage(version=1, table=Passages)
def given_passages(out: Path) -> None:
    """Thirty passages of one to twelve words, some with a title."""
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(WORDS, size)) for size in rng.integers(1, 13, 30)]
    write_rows(out, Passages, (
        {"passage_id": f"p{n:02}", "doc_id": f"p{n:02}", "title": "winter garden" if n % 3 else "", "text": text,
         "start": 0, "end": len(text), "num_tokens": 2}
        for n, text in enumerate(texts)
    ))  # fmt: skip


@stage(version=1, table=Checkpoint)
def given_retriever(out: Path, *, settings: Kind) -> None:
    """Random weights; where queries have an encoder of their own, it differs from the passages'."""
    model = tiny_retriever(settings.views)
    if settings.sharing != "siamese" or settings.pooling != "cls":
        encoder = towers.build_encoders(DenseEncoder(tiny_bert(spread=0.2), settings.pooling), settings.sharing)
        if settings.sharing != "siamese":
            with torch.no_grad():
                for parameter in encoder.query.bert.encoder.layer[0].intermediate.parameters():  # type: ignore[union-attr,index]
                    parameter.add_(torch.randn_like(parameter))
        model = retriever.Retriever(encoder, RETRIEVERS[settings.views], tiny_tokenizer())
    retriever.save(model, out)
    if settings.pretrained:
        (out / "retriever.json").unlink()
    save_tokenizer(out)
    if (out / towers.QUERY).is_dir():
        save_tokenizer(out / towers.QUERY)


def searched(questions: list[str], key: str, store: Store) -> list[list[tuple[str, float]]]:
    """Return the complete ranking of `pretrieve search` for each question."""
    opened = open_key(key, store)
    return [
        [(row.passage_id, row.scores["dense"]) for row in search(opened, text, store, top=99, view="dense")]
        for text in questions
    ]


def ranked_by_the_package(folder: Path, questions: list[str], passages: Artifact[Any]) -> list[list[tuple[str, float]]]:
    """Return the complete ranking of sentence-transformers for each question."""
    from sentence_transformers import SentenceTransformer

    from storage.rows import read_rows

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    rows = list(read_rows(passages, Passages))
    documents = model.encode_document([passage_text(row["title"], row["text"]) for row in rows])
    scores_QP = model.similarity(model.encode_query(questions), documents).numpy()
    order_QP = np.argsort(-scores_QP, axis=1, kind="stable")
    return [
        [(rows[row]["passage_id"], float(scores[row])) for row in order]
        for scores, order in zip(scores_QP, order_QP, strict=True)
    ]


KINDS = {
    "one encoder": Kind(),
    "mean pooling": Kind(pooling="mean"),
    "projected": Kind(views="projected"),
    "separate encoders": Kind(sharing="separate"),
    "separate encoders, mean": Kind(sharing="separate", pooling="mean"),
    "experts": Kind(sharing="mixture"),
    "separate and projected": Kind(sharing="separate", views="projected"),
    "pre-trained only": Kind(pretrained=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_transformers_ranks_as_search_does(
    kind: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETRIEVERS, "projected", RetrieverSettings(dense=DenseSettings(dim=12)))
    passages, built = given_passages(), given_retriever(settings=KINDS[kind])
    encode(passages=passages, checkpoint=built, settings=LENGTHS)

    exported = command(capsys, "export", built.key, tmp_path / "model", "--store", store.root)

    assert exported.code == 0, exported.err
    expected = searched(QUESTIONS, built.key, store)
    ranking = ranked_by_the_package(tmp_path / "model", QUESTIONS, passages)
    assert [[name for name, _ in row] for row in ranking] == [[name for name, _ in row] for row in expected]
    for ours, theirs in zip(expected, ranking, strict=True):
        assert [score for _, score in theirs] == pytest.approx([score for _, score in ours], rel=1e-4, abs=1e-4)
    assert "encode_query" in (tmp_path / "model" / "README.md").read_text()
    assert load.read_settings(tmp_path / "model") == load.read_settings(built.path)  # it is still one of this project's
    assert not load.is_foreign(tmp_path / "model")


def test_lengths_are_those_of_the_training_where_nothing_was_encoded(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = given_retriever(settings=Kind())
    path = built.path / "manifest.json"
    assert command(capsys, "export", built.key, tmp_path / "plain", "--store", store.root).code == 0
    assert json.loads((tmp_path / "plain" / "sentence_bert_config.json").read_text()) == {}
    assert "query_max_tokens" not in json.loads(path.read_text())["settings"]

    encode(passages=given_passages(), checkpoint=built, settings=LENGTHS)
    assert command(capsys, "export", built.key, tmp_path / "encoded", "--store", store.root).code == 0
    lengths = json.loads((tmp_path / "encoded" / "sentence_bert_config.json").read_text())
    assert lengths == {"query_length": 6, "document_length": 9}


@pytest.mark.parametrize("views", ["coil", "hybrid", "duplex", "mixture"])
def test_a_retriever_with_other_representations_does_not_claim_to_open_in_the_package(
    views: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = given_retriever(settings=Kind(views=views))

    exported = command(capsys, "export", built.key, tmp_path / "model", "--store", store.root)

    assert exported.code == 0, exported.err
    assert not (tmp_path / "model" / "modules.json").exists()
    assert "sentence-transformers does not" in (tmp_path / "model" / "README.md").read_text()
    assert load.load(tmp_path / "model").retriever.views == load.load(built.path).retriever.views
