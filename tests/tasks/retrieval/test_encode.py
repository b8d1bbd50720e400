"""Encoding: every view as the retriever makes it, whatever shares a batch, and shards that are never made twice."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.representation import Representation
from models.retrievers import retriever
from storage.artifact import Artifact
from storage.errors import UserError
from storage.tables import Checkpoint, Passages
from storage.vectors import Encoded, bytes_per_passage, num_shards, read_shard
from tasks.retrieval import encode as encoding
from tasks.retrieval.encode import Encoding, TextEncoder, as_rows, encode
from tasks.runtime.token_batches import batches
from tests.tiny import RETRIEVERS, WORDS, save_tokenizer, tiny_retriever

pytestmark = pytest.mark.usefixtures("on_one_thread")
SETTINGS = Encoding(query_max_tokens=12, passage_max_tokens=24)


def saved(folder: Path, kind: str) -> Artifact[Checkpoint]:
    folder.mkdir(parents=True, exist_ok=True)
    retriever.save(tiny_retriever(kind), folder)
    save_tokenizer(folder)
    return Artifact("train", kind, folder)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices([*WORDS, ",", "."], k=draw.randint(1, 30))) for _ in range(90)] + ["", "!", "king"]


@pytest.fixture(scope="module")
def passages(written, texts: list[str]) -> Artifact[Passages]:
    blank = {"title": "", "start": 0, "end": 1, "num_tokens": 1}
    return written(Passages, [{"passage_id": f"p{n}", "doc_id": "d", "text": text, **blank} for n, text in
                              enumerate(texts)])  # fmt: skip


def close(one: Encoded, other: Encoded) -> None:
    assert one.views == other.views
    if one.dense is not None:
        assert np.allclose(one.dense, other.dense, atol=1e-5)
    if one.lexical is not None:
        full = np.zeros((2, len(one), 200), np.float32)
        for table, rows in zip(full, (one.lexical, other.lexical), strict=True):
            table[np.repeat(np.arange(len(rows)), np.diff(rows.offsets)), rows.ids] = rows.values
        assert np.allclose(*full, atol=1e-5)
        assert full.any()
    if one.late is not None:
        assert np.array_equal(one.late.offsets, other.late.offsets)
        assert np.array_equal(one.late.ids, other.late.ids)
        assert np.allclose(one.late.vectors, other.late.vectors, atol=1e-5)


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_encoding_does_not_depend_on_other_texts(kind: str, texts: list[str], tmp_path: Path) -> None:
    encoder, counted = TextEncoder(saved(tmp_path, kind).path), []
    encoder.tokens_per_batch = 200
    for role, max_tokens in (("passage", 24), ("query", 12)):
        together = encoder(texts, role, max_tokens, counted.append)
        alone = Encoded.concatenated([encoder([text], role, max_tokens) for text in texts])
        assert together.views == tuple(view for view in ("dense", "lexical", "late") if getattr(RETRIEVERS[kind], view))
        close(together, alone)
    assert sum(counted) == 2 * len(texts)
    assert len(counted) > 10


def test_rows_have_no_zero_weights_and_no_masked_tokens() -> None:
    built = Representation(
        dense=torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        lexical=torch.tensor([[0.0, -1.5, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]]),
        tokens=torch.arange(12.0).view(2, 3, 2),
        token_mask=torch.tensor([[False, True, True], [True, False, False]]),
        token_ids=torch.tensor([[7, 8, 9], [7, 0, 0]]),
    )
    rows = as_rows(built)
    assert rows.dense.tolist() == [[1, 2], [3, 4]]
    assert (rows.lexical.offsets.tolist(), rows.lexical.ids.tolist()) == ([0, 2, 2], [1, 3])
    assert rows.lexical.values.tolist() == [-1.5, 2.0]
    assert (rows.late.offsets.tolist(), rows.late.ids.tolist()) == ([0, 2, 3], [8, 9, 7])
    assert rows.late.vectors.tolist() == [[2, 3], [4, 5], [6, 7]]
    kinds = [rows.dense, rows.lexical.values, rows.late.vectors, rows.lexical.ids, rows.late.ids, rows.lexical.offsets]
    assert [kind.dtype.name for kind in kinds] == ["float32"] * 3 + ["int32"] * 2 + ["int64"]
    assert len(as_rows(Representation(tokens=built.tokens, token_mask=built.token_mask)).late.ids) == 0
    assert as_rows(Representation(dense=built.dense)).views == ("dense",)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PASSAGES_PER_SHARD", {"dense": 64, "lexical": 32, "late": 16})


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(("kind", "shards"), [("dpr", 2), ("splade", 3), ("coil", 6), ("mixture", 6)])
def test_the_stage_writes_all_views_in_shards_and_describes_them(
    kind: str, shards: int, passages: Artifact[Passages], texts: list[str], tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path / "checkpoint", kind)
    encode.body(tmp_path / "out", passages, checkpoint, settings=SETTINGS)
    parts = [read_shard(tmp_path / "out", shard) for shard in range(num_shards(tmp_path / "out"))]
    assert len(parts) == shards
    close(Encoded.concatenated(parts), TextEncoder(checkpoint.path)(texts, "passage", 24))
    description = json.loads((tmp_path / "out" / "vectors.json").read_text())
    assert description == {
        "passages": 93,
        "shards": shards,
        "views": {view: getattr(RETRIEVERS[kind], view).weight for view in RETRIEVERS[kind].views},
        "exact_match": kind == "coil",
        "query_max_tokens": 12,
        "passage_max_tokens": 24,
        "bytes_per_passage": bytes_per_passage(tmp_path / "out"),
    }
    assert set(description["bytes_per_passage"]) == set(description["views"])


@pytest.mark.usefixtures("small_shards")
def test_encoding_resumes_from_finished_shards_with_equal_bytes(
    passages: Artifact[Passages], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "mixture")
    whole, cut_off = tmp_path / "whole", tmp_path / "cut_off"
    encode.body(whole, passages, checkpoint, settings=SETTINGS)
    real, calls = TextEncoder.__call__, []

    def killed(self: TextEncoder, *arguments: object) -> object:
        calls.append(len(arguments[0]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TextEncoder, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        encode.body(cut_off, passages, checkpoint, settings=SETTINGS)
    assert not (cut_off / "vectors.json").exists()
    (cut_off / "late/00001.vectors.npy").unlink()  # killed between two files of a shard
    encode.body(cut_off, passages, checkpoint, settings=SETTINGS)
    assert calls == [16, 16, 16, 16, 16, 16, 16, 13]  # two and one that was killed; then all but the first
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(cut_off) for path in cut_off.rglob("*") if path.is_file())
    assert all((whole / file).read_bytes() == (cut_off / file).read_bytes() for file in files)


@pytest.mark.usefixtures("small_shards")
def test_one_shard_is_in_memory_at_a_time(
    passages: Artifact[Passages], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    read, write = encoding.read_rows, encoding.write_shard

    def watched(*arguments: object) -> object:
        for row in read(*arguments):  # type: ignore[arg-type]
            seen.append("row")
            yield row

    monkeypatch.setattr(encoding, "read_rows", watched)
    monkeypatch.setattr(encoding, "write_shard", lambda *arguments: seen.append("shard") or write(*arguments))
    encode.body(tmp_path / "out", passages, saved(tmp_path / "checkpoint", "splade"), settings=SETTINGS)
    assert seen == (["row"] * 32 + ["shard"]) * 2 + ["row"] * 29 + ["shard"]


def test_a_broken_checkpoint_is_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "dpr")
    broken = tiny_retriever("dpr")
    with torch.no_grad():
        broken.encoder.passage.bert.embeddings.word_embeddings.weight.fill_(1e38)
    retriever.save(broken, checkpoint.path)
    with pytest.raises(UserError, match=r"shard 0 of the dense view .* not finite"):
        encode.body(tmp_path / "out", passages, checkpoint, settings=SETTINGS)


def test_more_tokens_than_positions_are_refused(passages: Artifact[Passages], tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "checkpoint", "dpr")
    with pytest.raises(UserError, match="passage_max_tokens: the checkpoint reads at most 64 tokens, found 65"):
        encode.body(tmp_path, passages, checkpoint, settings=Encoding(query_max_tokens=12, passage_max_tokens=65))


def test_no_passages_have_no_shards(written, tmp_path: Path) -> None:
    encode.body(tmp_path / "out", written(Passages, []), saved(tmp_path / "checkpoint", "dpr"), settings=SETTINGS)
    description = json.loads((tmp_path / "out" / "vectors.json").read_text())
    assert (description["passages"], description["shards"], description["views"]) == (0, 0, {"dense": 1.0})


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_batches_contain_every_text_and_fit(lengths: list[int], tokens: int) -> None:
    results = list(batches(lengths, tokens))
    assert sorted(number for batch in results for number in batch) == list(range(len(lengths)))
    for batch in results:
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= tokens
