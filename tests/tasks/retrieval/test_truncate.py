"""Truncated vectors are those that an encoder with fewer dimensions would write, in the same shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from models.retrievers import retriever
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views.dense import DenseSettings
from storage.artifact import Artifact
from storage.tables import Passages
from storage.vectors import Encoded, num_shards, read_shard
from tasks.retrieval import encode as encoding
from tasks.retrieval.encode import Encoding, TextEncoder, encode
from tasks.retrieval.search import QueryEncoder
from tasks.retrieval.truncate import Truncation, truncate
from tests.tiny import WORDS, save_tokenizer, tiny_bert, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("on_one_thread")
TEXTS = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:7]]


@pytest.mark.parametrize("normalise", [False, True])
def test_they_equal_those_of_an_encoder_and_their_queries_are_truncated_too(
    normalise: bool, written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = {"title": "", "doc_id": "d", "start": 0, "end": 1, "num_tokens": 1}
    passages = written(Passages, [{"passage_id": f"p{n}", "text": text, **blank} for n, text in enumerate(TEXTS)])
    checkpoint = Artifact("train", "k", tmp_path / "checkpoint")
    checkpoint.path.mkdir()
    settings = RetrieverSettings(dense=DenseSettings(dim=None, normalise=normalise))
    retriever.save(retriever.Retriever(DenseEncoder(tiny_bert(), "cls"), settings, tiny_tokenizer()), checkpoint.path)
    save_tokenizer(checkpoint.path)
    monkeypatch.setattr(encoding, "PASSAGES_PER_SHARD", {"dense": 16})
    full, short = (Artifact(name, "k", tmp_path / name) for name in ("encode", "truncate"))
    encode.body(full.path, passages, checkpoint, settings=Encoding(query_max_tokens=8, passage_max_tokens=8))
    short.path.mkdir()

    truncate.body(short.path, full, checkpoint, settings=Truncation(truncate_dim=7))

    expected = TextEncoder(checkpoint.path, truncate_dim=7)(TEXTS, "passage", 8).dense
    parts = [read_shard(short.path, shard) for shard in range(num_shards(short.path))]
    assert [len(part) for part in parts] == [16, 16, 10]
    np.testing.assert_allclose(Encoded.concatenated(parts).dense, expected, rtol=1e-5, atol=1e-6)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1) == normalise
    described, of_full = (json.loads((part.path / "vectors.json").read_text()) for part in (short, full))
    assert described == of_full | {"truncate_dim": 7, "bytes_per_passage": {"dense": 28.0}}
    assert QueryEncoder(short, checkpoint)(["king"]).dense.shape == (1, 7)
