"""Samples that read their text's keys and values together, beside rows that each have their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertTokenizer

from tasks.pseudo_queries.generators.load_model import ModelSource, open_config
from tasks.pseudo_queries.generators.seq2seq import Seq2Seq, Seq2SeqState
from tasks.pseudo_queries.generators.shared_cross_attention import enable_shared_cross_attention
from tests.tasks.pseudo_queries.generators.test_sampler import bart, bert_to_bert
from tests.tiny import SPECIALS, tiny_t5

WORDS = [f"w{number}" for number in range(30)]
IDS = [[9, 8, 7, 6, 3], [10, 11, 3], [12, 13, 14, 15, 16, 17, 3], [20, 3], [21, 22, 3]]
# Which of the rows stay, at first three for each of five texts: all; five, two of them of the first text and none of
# the last, so that there are as many as texts and yet not one of each; three of three texts, so that the others are
# dropped; one.
KEPT: list[list[int]] = [list(range(15)), [0, 2, 4, 6, 11], [1, 3, 4], [1]]
STORED = [5, 5, 3, 1]


@pytest.fixture(scope="module", params=[tiny_t5, bart, bert_to_bert], ids=["t5", "bart", "bert_to_bert"])
def generator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seq2Seq:
    folder: Path = tmp_path_factory.mktemp("generator")
    torch.manual_seed(6)
    BertTokenizer(vocab={piece: i for i, piece in enumerate(SPECIALS + WORDS)}).save_pretrained(folder)
    request.param(len(SPECIALS + WORDS)).save_pretrained(folder)
    source = ModelSource(folder, open_config(folder), "float32", torch.device("cpu"))
    return Seq2Seq(source, prefix="", max_tokens=32, max_new_tokens=8)


@torch.inference_mode()
def logits(generator: Seq2Seq, watch: Callable[[Seq2SeqState], None] = lambda state: None) -> list[torch.Tensor]:
    """Those of a start and of a step after each selection."""
    state, first = generator.start(IDS)
    state.repeat(3)
    results, random = [first], torch.Generator().manual_seed(0)
    for kept in KEPT:
        state.select(torch.tensor(kept))
        results.append(state.step(torch.randint(5, 35, (len(kept), 1), generator=random)))
        watch(state)
    return results


def test_what_is_read_together_is_what_rows_of_their_own_read(
    generator: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    together = logits(generator, lambda state: stored.append(len(state.cache.cross_attention_cache.layers[0].keys)))
    monkeypatch.setattr(generator, "shares", False)
    apart = logits(generator)

    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert stored == STORED, "keys of a text are stored once, and dropped with its last row"


def test_a_decoder_that_attends_otherwise_has_rows_of_their_own(generator: Seq2Seq) -> None:
    together = logits(generator)
    model: Any = generator.model
    model.set_attn_implementation("eager")
    apart = Seq2Seq.__new__(Seq2Seq)
    apart.__dict__.update(generator.__dict__, shares=enable_shared_cross_attention(model.get_decoder()))

    assert not apart.shares
    for one, other in zip(together, logits(apart), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    model.set_attn_implementation("sdpa")
    generator.shares = enable_shared_cross_attention(model.get_decoder())
    assert generator.shares
