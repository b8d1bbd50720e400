"""Sampling from a seq2seq model against Hugging Face's own, and what a sample depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertTokenizer,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)

from tasks.pseudo_queries.generators import sampler as sampling
from tasks.pseudo_queries.generators.gumbel_sampling import nucleus, numbers
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler, batch_order, batch_size
from tests.tasks.pseudo_queries.small_corpus import SETTINGS, WORDS
from tests.tiny import SPECIALS, tiny_t5


def bart(size: int) -> Any:
    """One that always writes the same token first, as BART's settings have it."""
    config = BartConfig(
        vocab_size=size, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.5,
        decoder_start_token_id=2, pad_token_id=0, eos_token_id=3, bos_token_id=4, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = 4
    return model


def bert_to_bert(size: int) -> Any:
    bert = BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5,
    )  # fmt: skip
    config = EncoderDecoderConfig.from_encoder_decoder_configs(bert, bert)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 3
    return EncoderDecoderModel(config)


@pytest.fixture(scope="module", params=[tiny_t5, bart, bert_to_bert], ids=["t5", "bart", "bert_to_bert"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over a few words, whose samples end early often enough to matter."""
    folder = tmp_path_factory.mktemp("generator")
    torch.manual_seed(5)
    BertTokenizer(vocab={piece: i for i, piece in enumerate(SPECIALS + WORDS)}).save_pretrained(folder)
    request.param(len(SPECIALS + WORDS)).save_pretrained(folder)
    return folder


def sampler(folder: Path, **changes: Any) -> Sampler:
    return Sampler(folder, SETTINGS.model_copy(update=changes), torch.device("cpu"), print)


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 20))) for _ in range(count)]


def samples(of: Sampler, requests: list[GenerationRequest]) -> list[list[str]]:
    return [queries for _, queries in sorted(pair for batch in of(requests) for pair in batch)]


def three(given: list[str]) -> list[GenerationRequest]:
    return [GenerationRequest(text, range(3), draw=0) for text in given]


def test_greedy_sampling_writes_what_generate_writes(checkpoint: Path) -> None:
    ours = sampler(checkpoint, top_k=1, batch_tokens=100)
    given = texts(12)

    tokenizer, forced = ours.generator.tokenizer, len(ours.generator.starts) - 1
    inputs = tokenizer([SETTINGS.prefix + text for text in given], return_tensors="pt", padding=True)
    reference = ours.generator.model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=8 + forced,
        do_sample=False, num_beams=1, decoder_start_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip

    expected = tokenizer.batch_decode(reference, skip_special_tokens=True)
    assert samples(ours, three(given)) == [[text] * 3 for text in expected]
    assert len(set(expected)) > 1


def test_each_step_draws_from_the_models_distribution(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against one text at a time, without a cache, without compaction: whole samples are run at once."""
    monkeypatch.setattr(sampling, "LIVE_SHARE", 1.0)
    ours, requests = sampler(checkpoint), three(texts(8))
    ids = ours.generator.read([request.text for request in requests])
    bits = torch.from_numpy(np.stack([numbers(42, 0, request.text, request.ranks, 8) for request in requests]))

    written = sampling.sample(ours.generator, ids, bits, ours.settings)

    assert written == [drawn(ours, *row) for row in zip(ids, written, bits, strict=True)]
    assert len({len(tokens) for samples in written for tokens in samples}) > 1, "rows must end at different steps"


def drawn(of: Sampler, ids: list[int], samples: list[list[int]], bits: torch.Tensor) -> list[list[int]]:
    """What the random bits draw after each beginning of each sample, up to the end."""
    starts = of.generator.starts
    before = torch.tensor([[*starts, *tokens, *[0] * (8 - len(tokens))][:-1] for tokens in samples])
    with torch.inference_mode():
        logits = of.generator.model(input_ids=torch.tensor([ids] * 3), decoder_input_ids=before).logits
    results = [
        nucleus(logit[len(starts) - 1 :], 10, 0.95).draw(numbers).tolist()
        for logit, numbers in zip(logits, bits, strict=True)
    ]
    return [tokens[: tokens.index(3)] if 3 in tokens else tokens for tokens in results]


def test_a_sixth_sample_is_the_same_alone_as_with_the_other_five(checkpoint: Path) -> None:
    ours, inputs = sampler(checkpoint), texts(6)

    whole = samples(ours, [GenerationRequest(text, range(6), draw=0) for text in inputs])
    sixth = samples(ours, [GenerationRequest(text, range(5, 6), draw=0) for text in inputs])

    assert sixth == [queries[5:] for queries in whole]
    assert len({query for queries in whole for query in queries}) > 20


def test_a_batch_holds_passages_that_ask_for_equally_many_samples() -> None:
    requests = [GenerationRequest(str(number), range(number % 2, 3), draw=0) for number in range(10)]
    ids = [[1] * length for length in (5, 9, 5, 8, 4, 7, 3, 6, 2, 5)]

    order = batch_order(requests, [len(tokens) for tokens in ids])

    assert order == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9], "the longest first of those that ask for as many"
    sizes = [batch_size(order[start:], requests, ids, tokens) for start, tokens in ((0, 20), (3, 20), (5, 20), (5, 8))]
    assert sizes == [4, 2, 2, 1]
