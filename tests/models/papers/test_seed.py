"""SEED: its batches, and its losses against loops over rows and columns written from the formulas."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED
from models.papers.seed import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget, masked_crop
from tests.slow import Array, attend, bert_layers, dense, embedded, gelu, log_softmax, norm, numbers, vocabulary
from tests.tiny import random_texts, start

SETTINGS = Settings(decoder_layers=3, window=2, mask_rate=0.3, max_tokens=20)


def texts(count: int = 8, longest: int = 30, seed: int = 0) -> list[list[int]]:
    return random_texts(count, longest, np.random.default_rng(seed))


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS) -> Batch:
    return make_batch(RawBatch(texts()), tokenizer, settings, RowRandom(0, 0))


def objective(
    settings: Settings = SETTINGS, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2
) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout, spread=spread), settings)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def slow_decoder(w: dict[str, Array], d: dict[str, Array], vector: Array, ids: list[int], window: int) -> list[float]:
    """-log P(x_t | vector, what stands at most `window` before x_t, in each block) for t = 1 ... n and [SEP]."""
    x = embedded(w, ids)
    x[0] = vector
    visible = [{0} | {column for column in range(1, row + 1) if row - column < window} for row in range(len(ids))]
    for block in range(sum(name.endswith("widen.bias") for name in d)):
        name = f"blocks.{block}"
        mixed = attend(norm(x, d, f"{name}.attention_norm"), d, f"{name}.attention", visible)
        x = x + dense(mixed, d, f"{name}.attention_output")
        x = x + dense(gelu(dense(norm(x, d, f"{name}.mlp_norm"), d, f"{name}.widen")), d, f"{name}.narrow")
    scores = log_softmax(vocabulary(norm(x, d, "norm"), w))
    return [-scores[position - 1, ids[position]] for position in range(1, len(ids))]


def test_the_encoder_reads_a_masked_crop(tokenizer: Tokenizer) -> None:
    inputs = texts(60)

    batch = make_batch(RawBatch(inputs), tokenizer, SETTINGS, RowRandom(0, 0))

    for ids, mask, labels, text in zip(batch.tokens.ids, batch.tokens.mask, batch.labels, inputs, strict=True):
        original, hidden = masked_crop(ids, mask, labels, text)
        assert hidden.sum() == mask_budget(len(original) - 2, 0.3)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("window", [1, 2])
@torch.no_grad()
def test_losses_slowly(tokenizer: Tokenizer, window: int, pooling: Pooling, layers: int) -> None:
    settings = dataclasses.replace(SETTINGS, window=window, decoder_layers=layers)
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer, settings)

    vectors, losses = model.encode(inputs)

    w, d = numbers(model.model), numbers(model.decoder)
    recovered: list[float] = []
    decoded: list[float] = []
    for ids, mask, labels in zip(inputs.tokens.ids, inputs.tokens.mask, inputs.labels, strict=True):
        masked, label_ids = ids[mask].tolist(), labels[mask].tolist()
        hidden = bert_layers(w, masked)[-1]
        scores = log_softmax(vocabulary(hidden, w))
        recovered += [-scores[position, label] for position, label in enumerate(label_ids) if label != IGNORED]
        original = [number if label == IGNORED else label for number, label in zip(masked, label_ids, strict=True)]
        decoded += slow_decoder(w, d, hidden[0] if pooling == "cls" else hidden.mean(0), original, window)
    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    results = {name: loss.item() for name, loss in losses.items()}
    assert results == pytest.approx({"mlm": np.mean(recovered), "decoder": np.mean(decoded)}, rel=2e-5)
    for loss, terms in (("mlm", recovered), ("decoder", decoded)):
        assert inputs.num_terms(loss) == len(terms) == sum(inputs.rows(n, n + 1).num_terms(loss) for n in range(8))


def test_the_decoder_hears_of_the_text_through_the_vector_and_the_last_few_tokens_alone(tokenizer: Tokenizer) -> None:
    model, given = objective(), batch(tokenizer)
    hidden = model.model.bert(given.tokens.ids, given.tokens.mask).detach().requires_grad_()
    inputs: list[Tensor] = []
    model.model.bert.forward = lambda ids, mask, **known: hidden

    def kept(ids: Tensor) -> Tensor:
        inputs.append(model.model.bert.embeddings(ids).detach().requires_grad_())
        return inputs[-1]

    model.decoder.embeddings = kept
    logits: list[Tensor] = []
    model.decoder.register_forward_hook(lambda module, given, out: logits.append(out[0]))
    _, losses = model.encode(given)

    (of_hidden,) = torch.autograd.grad(losses["decoder"], hidden, retain_graph=True)
    assert (of_hidden[:, 0].abs().amax(1) > 1e-6).all()
    assert not of_hidden[:, 1:].any()
    (of_hidden,) = torch.autograd.grad(losses["mlm"], hidden, retain_graph=True)
    assert torch.equal(of_hidden.abs().amax(-1) > 0, given.labels != IGNORED)
    for row in range(int(given.tokens.mask[0].sum()) - 1):  # three layers, each of which looks one token back
        (of_tokens,) = torch.autograd.grad(logits[0][row].square().sum(), inputs[0], retain_graph=True)
        assert set(of_tokens[0].abs().amax(-1).nonzero().flatten().tolist()) == set(range(max(1, row - 3), row + 1))
        assert not of_tokens[1:].any()


def test_the_vocabulary_head_sees_asked_positions_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, seen = objective(), batch(tokenizer), []
    head = model.model.vocabulary
    for owner in (model.model, model.decoder):
        monkeypatch.setattr(owner, "vocabulary", lambda hidden: seen.append(len(hidden)) or head(hidden))

    model.encode(inputs)

    assert seen == [inputs.num_terms("mlm"), inputs.num_terms("decoder")]
