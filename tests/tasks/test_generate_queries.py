"""The stage that writes queries, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertTokenizer,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    T5Config,
    T5ForConditionalGeneration,
)

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_rows
from storage.tables import Passages, PseudoQueries
from tasks import generate_queries as module
from tasks.generate_queries import Generation, generate_queries
from tasks.generators.sampling import Asked, Sampler

WORDS = [
    "the", "a", "of", "river", "city", "king", "old", "war", "painter", "in", "french", "born", "film", "novel",
    "island",
]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SETTINGS = Generation(
    queries_per_passage=3, prefix="the ", input_max_tokens=32, top_k=10, top_p=0.95, max_new_tokens=8, seed=42,
    shard_passages=4, batch_tokens=10_000,
)  # fmt: skip


def t5(size: int) -> Any:
    config = T5Config(
        vocab_size=size, d_model=16, d_kv=8, num_heads=2, d_ff=32, num_layers=2,
        decoder_start_token_id=2, pad_token_id=0, eos_token_id=3,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def bert_to_bert(size: int) -> Any:
    bert = BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5,
    )  # fmt: skip
    config = EncoderDecoderConfig.from_encoder_decoder_configs(bert, bert)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 3
    return EncoderDecoderModel(config)


@pytest.fixture(scope="module", params=[t5, bert_to_bert], ids=["t5", "bert_to_bert"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over a few words, whose samples end early often enough to matter."""
    folder = tmp_path_factory.mktemp("generator")
    torch.manual_seed(5)
    BertTokenizer(vocab={piece: i for i, piece in enumerate(SPECIAL + WORDS)}).save_pretrained(folder)
    request.param(len(SPECIAL + WORDS)).save_pretrained(folder)
    return folder


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


@pytest.fixture
def passages(written: Any) -> Artifact[Passages]:
    return written(Passages, [row(i, text) for i, text in enumerate(texts(10))])


def row(number: int, text: str) -> dict[str, Any]:
    return {
        "passage_id": f"d{number}-0", "doc_id": f"d{number}", "title": "", "text": text, "start": 0, "end": len(text),
        "num_tokens": len(text.split()),
    }  # fmt: skip


def by_passage(path: Path) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for each in read_rows(Artifact("generate_queries", "k", path), PseudoQueries):
        found.setdefault(each["passage_id"], []).append((each["rank"], each["text"]))
    return found


@pytest.mark.usefixtures("store")
def test_queries_stand_in_passage_order_with_their_sample_number(
    checkpoint: Path, passages: Artifact[Passages], tmp_path: Path
) -> None:
    generate_queries.body(tmp_path, passages, Source("m", checkpoint), settings=SETTINGS)

    found = by_passage(tmp_path)
    assert list(found) == [f"d{i}-0" for i in range(10) if f"d{i}-0" in found]
    assert all(0 <= rank < 3 and text for queries in found.values() for rank, text in queries)
    assert [path.stem for path in parts(tmp_path)] == ["part-00000", "part-00001", "part-00002"]


@pytest.mark.usefixtures("store")
def test_a_passage_gets_its_queries_whatever_the_order_shard_and_batch(
    checkpoint: Path, passages: Artifact[Passages], written: Any, tmp_path: Path
) -> None:
    order = np.random.default_rng(3).permutation(10)
    given = texts(10)
    shuffled = written(Passages, [row(i, given[i]) for i in order])
    smaller = SETTINGS.model_copy(update={"shard_passages": 3, "batch_tokens": 40})

    generate_queries.body(tmp_path / "a", passages, Source("m", checkpoint), settings=SETTINGS)
    generate_queries.body(tmp_path / "b", shuffled, Source("m", checkpoint), settings=smaller)

    assert by_passage(tmp_path / "a") == by_passage(tmp_path / "b")


@pytest.mark.usefixtures("store")
def test_a_killed_run_keeps_its_finished_shards(
    checkpoint: Path, passages: Artifact[Passages], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_queries.body(tmp_path / "whole", passages, Source("m", checkpoint), settings=SETTINGS)
    seen: list[int] = []

    class Killed(Sampler):
        def __call__(self, asked: Sequence[Asked]) -> Iterator[list[tuple[int, list[str]]]]:
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append(len(asked))
            return super().__call__(asked)

    monkeypatch.setattr(module, "open_sampler", Killed)
    with pytest.raises(KeyboardInterrupt):
        generate_queries.body(tmp_path / "killed", passages, Source("m", checkpoint), settings=SETTINGS)
    kept = {path: path.stat().st_mtime_ns for path in parts(tmp_path / "killed")}
    seen.clear()
    generate_queries.body(tmp_path / "killed", passages, Source("m", checkpoint), settings=SETTINGS)

    assert len(kept) == 2
    assert seen == [2], "only the last shard is written after the kill"
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    for path in parts(tmp_path / "whole"):
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


@pytest.mark.usefixtures("store")
def test_a_folder_that_is_no_seq2seq_model_is_named(passages: Artifact[Passages], tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()

    with pytest.raises(UserError, match="nothing: expected a seq2seq model"):
        generate_queries.body(tmp_path / "out", passages, Source("m", tmp_path / "nothing"), settings=SETTINGS)
