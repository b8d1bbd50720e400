"""The training of CPDAE: a batch is learned, gradients of chunks, seeds, dropout, refused settings."""

import dataclasses
import math

import pytest
import torch

from models.papers.cpdae import (
    Pretraining,
    Settings,
    reconstruction_losses,
)
from models.tokens import Tokenizer
from tasks.training import grad_cache as loop
from tests.models.papers.test_cpdae import ALONE, COUNTS, HIDDEN, NONE, TERMS, WORDS, V, batch, losses_of, objective
from tests.tiny import SHAPE, start


def test_equal_seeds_draw_equally(tokenizer: Tokenizer) -> None:
    one, same, other = (batch(tokenizer, seed=n) for n in (0, 0, 1))

    assert torch.equal(one.views.ids, same.views.ids)
    assert losses_of(objective(), one) == losses_of(objective(), same)
    assert not torch.equal(one.views.ids[:, :, :4], other.views.ids[:, :, :4])


# The objective


def test_the_decoder_starts_at_the_words_and_their_mean_chance() -> None:
    given = start(spread=0, terms=TERMS)
    made = Pretraining(given, WORDS)

    words = given.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(made.decoder.vocabulary.weight, words)
    assert made.decoder.vocabulary.weight.data_ptr() != words.data_ptr()
    chance = COUNTS.sum() / 50 / V
    torch.testing.assert_close(made.decoder.vocabulary.bias.sigmoid(), torch.full((V,), chance), rtol=1e-4, atol=1e-6)
    assert made.decoder.transform.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not made.decoder.transform.dense.bias.any()
    assert {name.partition(".")[0] for name, _ in made.named_parameters()} == {"model", "decoder"}


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("settings", [WORDS, HIDDEN, ALONE])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_chunks_have_the_gradients_of_a_direct_pass(tokenizer: Tokenizer, settings: Settings, dropout: float) -> None:
    made, given = objective(settings, dropout=dropout).train(), batch(tokenizer)
    losses = loop.gradients(made, given, 2, (3, 5))
    found = [parameter.grad.clone() for parameter in made.parameters()]

    made.zero_grad()
    chunks = [given.rows(0, 2), given.rows(2, 4), given.rows(4, 5)]
    passed = []
    for number, chunk in enumerate(chunks):
        torch.manual_seed(loop.mix_seeds((3, 5, number)))
        passed.append(made.encode(chunk))
    direct = dict(
        made.compare(tuple(torch.cat(each) for each in zip(*(each for each, _ in passed), strict=True)), given)
    )
    for name in ("mlm", "reconstruction"):
        terms = [chunk.num_terms(name) for chunk in chunks]
        direct[name] = sum(local[name] * n for (_, local), n in zip(passed, terms, strict=True)) / sum(terms)
    sum(direct.values()).backward()

    whole = losses_of(made, given) if dropout == 0 else direct
    assert set(losses) == set(whole) == {"mlm", "reconstruction", *(["contrast"] if settings != ALONE else [])}
    for name, loss in whole.items():
        assert losses[name].item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    for parameter, grad in zip(made.parameters(), found, strict=True):
        torch.testing.assert_close(grad, parameter.grad, atol=1e-5 * max(1.0, grad.abs().max().item()), rtol=1e-4)


@pytest.mark.parametrize("settings", [WORDS, HIDDEN, dataclasses.replace(ALONE, weighting="idf")])
def test_one_batch_can_be_learned_by_heart(tokenizer: Tokenizer, settings: Settings) -> None:
    made = Pretraining(
        start(spread=0, terms=TERMS), dataclasses.replace(settings, reconstruction_reduction="per_positive")
    )
    given, optimiser = batch(tokenizer), torch.optim.AdamW(made.parameters(), lr=1e-2)
    found = []
    for _ in range(60):
        optimiser.zero_grad()
        losses = losses_of(made, given)
        sum(losses.values()).backward()
        optimiser.step()
        found.append({name: loss.item() for name, loss in losses.items()})

    assert found[-1]["mlm"] < 0.2 * found[0]["mlm"]
    assert found[-1]["reconstruction"] < 0.3 * found[0]["reconstruction"]
    if settings.contrast_weight is not None:
        floor = 0 if settings.contrast == "hidden" else 0.1 * 5 * math.log(5)  # m anchors of ln m at best
        assert floor < found[-1]["contrast"] < found[0]["contrast"]


def test_the_decoder_sums_in_float32_whatever_the_encoder_computes_in(tokenizer: Tokenizer) -> None:
    made, given = objective(), batch(tokenizer)
    vectors = torch.randn(10, SHAPE["hidden_size"])
    words = given.words.repeat_interleave(2, 0)
    expected = reconstruction_losses(made.decoder(vectors), words, made.weights)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = made.decoder(vectors)
        found = reconstruction_losses(decoded, words, made.weights)

    assert decoded.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"anchors": None}, "contrast words: expected values for contrast_weight"),
        ({"contrast": "hidden", "contrast_temperature": None}, "contrast hidden: expected values"),
        ({"contrast": "none"}, "contrast none: expected null for contrast_weight"),
        ({"contrast": "none", **NONE, "contrast_reduction": "sum"}, "contrast none: expected null"),
        ({"contrast_temperature": 0.0}, "above 0"),
        ({"contrast_weight": -0.1}, "above 0"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(WORDS, **change)


def test_what_a_start_must_have() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(terms=TERMS), dataclasses.replace(WORDS, max_tokens=65))
    with pytest.raises(ValueError, match="term counts, found none"):
        Pretraining(start(), WORDS)
