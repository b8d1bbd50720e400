"""Sampling from a seq2seq model against Hugging Face's own, and what a sample depends on."""

from __future__ import annotations

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

from tasks.generate_queries import Generation
from tasks.generators import sampling
from tasks.generators.sampling import Asked, Sampler, batches, nucleus, uniforms

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
    return Sampler(folder, SETTINGS.model_copy(update=changes), torch.device("cpu"), print)


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


def samples(of: Sampler, asked: list[Asked]) -> list[list[str]]:
    return [queries for _, queries in sorted(pair for batch in of(asked) for pair in batch)]


def three(given: list[str]) -> list[Asked]:
    return [Asked(text, range(3), draw=0) for text in given]


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

    inputs = ours.tokenizer([SETTINGS.prefix + text for text in given], return_tensors="pt", padding=True)
    reference = ours.model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=8, do_sample=False,
        num_beams=1, decoder_start_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip

    expected = ours.tokenizer.batch_decode(reference, skip_special_tokens=True)
    assert samples(ours, three(given)) == [[text] * 3 for text in expected]
    assert len(set(expected)) > 1


def test_each_step_draws_from_the_models_distribution(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way: one row, no cache, no compaction, the whole prefix at every step."""
    monkeypatch.setattr(sampling, "LIVE_SHARE", 1.0)
    ours = sampler(checkpoint)
    given = texts(12)

    written = samples(ours, three(given))

    assert written == [[slowly(ours, Asked(text, range(rank, rank + 1), 0)) for rank in range(3)] for text in given]
    lengths = {len(query.split()) for queries in written for query in queries}
    assert len(lengths) > 2, "rows must end at different steps for compaction to be tried"


def slowly(of: Sampler, asked: Asked) -> str:
    ids = torch.tensor([of.tokenizer(SETTINGS.prefix + asked.text)["input_ids"]])
    prefix = [2]
    for uniform in uniforms(asked, SETTINGS.seed, SETTINGS.max_new_tokens)[0]:
        logits = of.model(input_ids=ids, decoder_input_ids=torch.tensor([prefix])).logits[:, -1]
        token = int(nucleus(logits, 10, 0.95).draw(torch.tensor([uniform])))
        if token == 3:
            break
        prefix.append(token)
    return " ".join(of.tokenizer.decode(prefix, skip_special_tokens=True).split())


def test_every_sample_has_a_stream_of_its_own() -> None:
    found = uniforms(Asked("the city", range(3), draw=0), seed=42, size=8)

    assert found.shape == (3, 8)
    assert len(np.unique(found)) == 24
    for asked, seed in (("the city", 0), 43), (("the river", 0), 42), (("the city", 1), 42):
        assert not np.isin(uniforms(Asked(asked[0], range(3), asked[1]), seed, 8), found).any()


def test_a_sixth_sample_is_the_same_alone_as_with_the_other_five(checkpoint: Path) -> None:
    ours, given = sampler(checkpoint), texts(6)

    whole = samples(ours, [Asked(text, range(6), draw=0) for text in given])
    sixth = samples(ours, [Asked(text, range(5, 6), draw=0) for text in given])

    assert sixth == [queries[5:] for queries in whole]
    assert len({query for queries in whole for query in queries}) > 20


def test_a_batch_holds_passages_that_ask_for_equally_many_samples() -> None:
    asked = [Asked(str(i), range(i % 2, 3), draw=0) for i in range(10)]
    lengths = [5, 9, 5, 8, 4, 7, 3, 6, 2, 5]

    found = list(batches(asked, lengths, tokens=20))

    assert sorted(place for batch in found for place in batch) == list(range(10))
    assert {len({len(asked[place].ranks) for place in batch}) for batch in found} == {1}
    assert all(max(lengths[place] for place in batch) * len(batch) <= 20 for batch in found)
    assert found[0] == [0, 2, 4, 6]
