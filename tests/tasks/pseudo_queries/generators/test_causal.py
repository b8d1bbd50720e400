"""Causal language models that write queries: the prompt, its cache, and what ends a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from storage.errors import UserError
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.generators import sampler as sampling
from tasks.pseudo_queries.generators.causal import PASSAGE, Prompt
from tasks.pseudo_queries.generators.gumbel_sampling import nucleus, numbers
from tasks.pseudo_queries.generators.sampler import Sampler

WORDS = ["river", "city", "king", "old", "war", "film", "novel"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
PIECES = ["<end>", *LETTERS, "Ġr", "Ġc", "?Ċ", "xĊy"]
PROMPT = "Passage: {passage}\nQuery:"
SETTINGS = Generation(
    queries_per_passage=3, prefix="", prompt=PROMPT, stop="\n", input_max_tokens=60, top_k=40, top_p=0.95,
    max_new_tokens=10, seed=42, shard_passages=4, batch_tokens=300,
)  # fmt: skip


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(PIECES), n_embd=16, n_layer=2, n_head=2, n_positions=80, initializer_range=0.3,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            initializer_range=0.3, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def bloom() -> Any:
    """One that is told of no positions: it takes them from the mask."""
    return BloomForCausalLM(
        BloomConfig(
            vocab_size=len(PIECES), hidden_size=16, n_layer=2, n_head=2, initializer_range=0.3, bos_token_id=0,
            eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


@pytest.fixture(scope="module", params=[gpt2, llama, bloom], ids=["gpt2", "llama", "bloom"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over bytes, with a tokenizer that names no padding; its ends come after few tokens."""
    folder = tmp_path_factory.mktemp("causal")
    torch.manual_seed(5)
    bpe = Tokenizer(BPE({piece: number for number, piece in enumerate(PIECES)}, [("Ġ", "r"), ("Ġ", "c")]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>").save_pretrained(folder)
    request.param().save_pretrained(folder)
    return folder


def sampler(folder: Path, **changes: Any) -> Sampler:
    return Sampler(folder, SETTINGS.model_copy(update=changes), torch.device("cpu"), print)


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(1, 9))) for _ in range(count)]


def test_each_step_draws_from_the_models_distribution(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against one text at a time, without padding, cache or compaction: whole samples are run at once."""
    monkeypatch.setattr(sampling, "LIVE_SHARE", 1.0)
    ours = sampler(checkpoint)
    ends = [*ours.generator.ends, *ours.generator.stops]
    ids = ours.generator.read(texts(6))
    bits = torch.from_numpy(np.stack([numbers(42, 0, text, range(3), 10) for text in texts(6)]))

    written = sampling.sample(ours.generator, ids, bits, ours.settings)

    assert len({len(prompt) for prompt in ids}) > 2, "prompts must be padded"
    assert len({len(tokens) for samples in written for tokens in samples}) > 1, "rows must end at different steps"
    for prompt, samples, words in zip(ids, written, bits, strict=True):
        rows = torch.tensor([[*prompt, *tokens, *[0] * (10 - len(tokens))][:-1] for tokens in samples])
        with torch.inference_mode():
            logits = ours.generator.model(input_ids=rows).logits[:, len(prompt) - 1 :]
        for tokens, row, number in zip(samples, logits, words, strict=True):
            drawn = nucleus(row, 40, 0.95).draw(number).tolist()
            last = next((step for step, token in enumerate(drawn) if token in ends), 9)
            assert tokens == [token for token in drawn[: last + 1] if token != 0]


def test_a_token_with_the_stop_in_it_ends_a_query_and_what_stands_before_is_kept(checkpoint: Path) -> None:
    generator = sampler(checkpoint).generator

    assert {PIECES[number] for number in generator.stops} == {"Ċ", "?Ċ", "xĊy"}
    assert generator.text([[PIECES.index("a"), PIECES.index("?Ċ")], [PIECES.index("xĊy")]]) == ["a?", "x"]
    assert sampler(checkpoint, stop=None).generator.stops == []


def test_of_a_long_prompt_the_passage_is_cut(checkpoint: Path) -> None:
    generator = sampler(checkpoint).generator
    passage = "é" + "old river city " * 8

    short, long = (generator.tokenizer.decode(ids) for ids in generator.read(["old", passage]))

    assert short == PROMPT.replace(PASSAGE, "old")
    assert long.startswith("Passage: éold river")
    assert long.endswith("\nQuery:")
    assert len(generator.read([passage])[0]) == 60
    assert passage.startswith(long.removeprefix("Passage: ").removesuffix("\nQuery:"))


def test_a_prompt_that_leaves_no_room_or_names_no_passage_is_refused(checkpoint: Path) -> None:
    tokenizer = sampler(checkpoint).generator.tokenizer

    with pytest.raises(UserError, match="input_max_tokens: the prompt without a passage has 16 tokens"):
        Prompt(PROMPT, 16).read(["old river"], tokenizer)
    for prompt in ("Query:", "{passage} {passage}"):
        with pytest.raises(UserError, match=r"prompt: expected \{passage\} exactly once"):
            Prompt(prompt, 16)
