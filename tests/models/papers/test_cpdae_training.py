"""CPDAE's seeds, the initial values of its decoder, and its precision."""

import pytest
import torch

from models.papers.cpdae import (
    Pretraining,
    reconstruction_losses,
)
from models.tokens import Tokenizer
from tests.models.papers.test_cpdae import COUNTS, TERMS, WORDS, V, batch, losses_of, objective
from tests.tiny import SHAPE, start


def test_equal_seeds_draw_equally(tokenizer: Tokenizer) -> None:
    one, same, other = (batch(tokenizer, seed=n) for n in (0, 0, 1))

    assert torch.equal(one.views.ids, same.views.ids)
    assert losses_of(objective(), one) == losses_of(objective(), same)
    assert not torch.equal(one.views.ids[:, :, :4], other.views.ids[:, :, :4])


# The objective


def test_the_decoder_starts_at_the_words_and_their_mean_chance() -> None:
    inputs = start(spread=0, terms=TERMS)
    model = Pretraining(inputs, WORDS)

    words = inputs.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.decoder.vocabulary.weight, words)
    assert model.decoder.vocabulary.weight.data_ptr() != words.data_ptr()
    chance = COUNTS.sum() / 50 / V
    torch.testing.assert_close(model.decoder.vocabulary.bias.sigmoid(), torch.full((V,), chance), rtol=1e-4, atol=1e-6)
    assert model.decoder.transform.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model.decoder.transform.dense.bias.any()
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {"model", "decoder"}


def test_the_decoder_sums_in_float32_whatever_the_encoder_computes_in(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer)
    vectors = torch.randn(10, SHAPE["hidden_size"])
    words = inputs.words.repeat_interleave(2, 0)
    expected = reconstruction_losses(model.decoder(vectors), words, model.weights)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = model.decoder(vectors)
        result = reconstruction_losses(decoded, words, model.weights)

    assert decoded.dtype == torch.float32
    assert torch.equal(result, expected)
