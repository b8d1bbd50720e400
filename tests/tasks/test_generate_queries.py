"""Sampling against Hugging Face's own, and the stage that shards it."""

from __future__ import annotations

from collections.abc import Iterator
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
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import parts, read_rows
from storage.tables import Passages, PseudoQueries
from tasks import generate_queries as module
from tasks.generate_queries import Generation, generate_queries
from tasks.generators import sampling
from tasks.generators.sampling import Sampler, nucleus

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


def sampler(folder: Path, **changes: Any) -> Sampler:
    return Sampler(folder, SETTINGS.model_copy(update=changes), torch.device("cpu"))


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


def samples(of: Sampler, given: list[str]) -> list[list[str]]:
    return [queries for _, queries in sorted(pair for batch in of(given) for pair in batch)]


def test_tokens_that_may_be_drawn_are_those_of_hugging_face_with_their_probabilities() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * 3
    scores = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, logits))

    found = nucleus(logits, top_k=12, top_p=0.8)

    shares = found.cumulative.diff(dim=1, prepend=torch.zeros(200, 1)) / found.cumulative[:, -1:]
    ours = torch.zeros(200, 50, dtype=torch.float64).scatter(1, found.tokens, shares)
    assert torch.allclose(ours, scores.double().softmax(1), atol=1e-6)
    assert bool(((ours > 0) == torch.isfinite(scores)).all())


def test_draws_invert_the_cumulative_distribution() -> None:
    found = nucleus(torch.log(torch.tensor([[0.1, 0.6, 0.3]])), top_k=3, top_p=1.0)

    drawn = [
        int(found.draw(torch.tensor([share], dtype=torch.float64))) for share in (0.0, 0.59, 0.61, 0.89, 0.91, 1.0)
    ]

    assert drawn == [1, 1, 2, 2, 0, 0]


def test_a_share_that_rounds_to_the_whole_draws_no_forbidden_token() -> None:
    found = nucleus(torch.log(torch.tensor([[0.1, 0.6, 0.3]])), top_k=3, top_p=0.5)

    assert int(found.draw(torch.tensor([1.0], dtype=torch.float64))) == 1


def test_greedy_sampling_writes_what_generate_writes(checkpoint: Path) -> None:
    ours = sampler(checkpoint, top_k=1, batch_tokens=100)
    given = texts(12)

    inputs = ours.tokenizer(given, return_tensors="pt", padding=True)
    reference = ours.model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=8, do_sample=False,
        num_beams=1, decoder_start_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip

    expected = ours.tokenizer.batch_decode(reference, skip_special_tokens=True)
    assert samples(ours, given) == [[text] * 3 for text in expected]
    assert len(set(expected)) > 1


def test_each_step_draws_from_the_models_distribution(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way: one row, no cache, no compaction, the whole prefix at every step."""
    monkeypatch.setattr(sampling, "LIVE_SHARE", 1.0)
    ours = sampler(checkpoint)
    given = texts(12)

    written = samples(ours, given)

    assert written == [[slowly(ours, text, sample) for sample in range(3)] for text in given]
    lengths = {len(query.split()) for queries in written for query in queries}
    assert len(lengths) > 2, "rows must end at different steps for compaction to be tried"


def slowly(of: Sampler, text: str, sample: int) -> str:
    uniforms = of._uniforms(text)[sample]
    ids = torch.tensor([of.tokenizer(text)["input_ids"]])
    prefix = [2]
    for uniform in uniforms:
        logits = of.model(input_ids=ids, decoder_input_ids=torch.tensor([prefix])).logits[:, -1]
        token = int(nucleus(logits, 10, 0.95).draw(torch.tensor([uniform])))
        if token == 3:
            break
        prefix.append(token)
    return " ".join(of.tokenizer.decode(prefix, skip_special_tokens=True).split())


def test_every_sample_has_its_own_stream(checkpoint: Path) -> None:
    ours = sampler(checkpoint)

    uniforms = ours._uniforms("the city")

    assert uniforms.shape == (3, 8)
    assert len(np.unique(uniforms)) == 24
    assert not np.array_equal(uniforms, sampler(checkpoint, seed=43)._uniforms("the city"))
    assert not np.array_equal(uniforms, ours._uniforms("the river"))


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
        def __call__(self, given: Any) -> Iterator[list[tuple[int, list[str]]]]:
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append(len(given))
            return super().__call__(given)

    monkeypatch.setattr(module, "Sampler", Killed)
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
