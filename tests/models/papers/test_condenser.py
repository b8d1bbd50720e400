"""Condenser: its batches, and its head against loops written from the formulas."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED
from models.papers.condenser import Batch, Head, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.texts import word_indices
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget, masked_crop
from tests.models.padded import padded
from tests.slow import bert_layer, bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import random_texts, start, tiny_bert

SETTINGS = Settings(head_layers=2, head_from=1, mask_rate=0.3, max_tokens=20)


def texts(count: int = 8, longest: int = 30, seed: int = 0) -> list[list[int]]:
    return random_texts(count, longest, np.random.default_rng(seed))


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(RawBatch(texts(seed=seed)), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings = SETTINGS, *, pooling: Pooling = "cls", dropout: float = 0.0) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout), settings)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# Batches


def test_whole_words_of_a_crop_are_hidden(tokenizer: Tokenizer) -> None:
    inputs = texts(60)

    batch = make_batch(RawBatch(inputs), tokenizer, SETTINGS, RowRandom(0, 0))

    for ids, mask, labels, text in zip(
        batch.text.tokens.ids, batch.text.tokens.mask, batch.text.labels, inputs, strict=True
    ):
        original, hidden = masked_crop(ids, mask, labels, text)
        assert hidden.sum() <= mask_budget(len(original) - 2, 0.3)
        words = word_indices(padded(original), tokenizer)[0]
        assert all(len(set(hidden[words == word])) == 1 for word in range(words.max() + 1))


def test_rows_of_a_batch_and_equal_seeds(tokenizer: Tokenizer) -> None:
    whole, again, other = batch(tokenizer), batch(tokenizer), batch(tokenizer, seed=1)

    assert torch.equal(whole.text.tokens.ids, again.text.tokens.ids)
    assert torch.equal(whole.text.labels, again.text.labels)
    assert not torch.equal(whole.text.labels, other.text.labels)
    assert len(whole) == 8
    assert torch.equal(whole.rows(2, 5).text.labels, whole.text.labels[2:5])
    for loss in ("mlm", "head"):
        assert whole.num_terms(loss) == int((whole.text.labels != IGNORED).sum())
        assert whole.num_terms(loss) == sum(whole.rows(n, n + 1).num_terms(loss) for n in range(8))


# The losses


@pytest.mark.parametrize(("head_layers", "head_from"), [(2, 1), (1, 1), (2, 0), (3, 0)])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@torch.no_grad()
def test_losses_slowly(tokenizer: Tokenizer, head_layers: int, head_from: int, pooling: Pooling) -> None:
    settings = dataclasses.replace(SETTINGS, head_layers=head_layers, head_from=head_from)
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer, settings)

    vectors, losses = model.encode(inputs)

    w, h = numbers(model.model), numbers(model.head)
    costs: dict[str, list[float]] = {"mlm": [], "head": []}
    for ids, mask, labels in zip(inputs.text.tokens.ids, inputs.text.tokens.mask, inputs.text.labels, strict=True):
        masked = ids[mask].tolist()
        states = bert_layers(w, masked)
        x = states[head_from].copy()  # h_1^M ... h_n^M
        x[0] = states[-1][0] if pooling == "cls" else states[-1].mean(0)  # h_0^L
        for layer in range(head_layers):
            x = bert_layer(x, h, f"layers.{layer}", [set(range(len(masked)))] * len(masked))
        for name, hidden in (("mlm", states[-1]), ("head", x)):
            chances = log_softmax(vocabulary(hidden, w))
            costs[name] += [-chances[n, label] for n, label in enumerate(labels[mask].tolist()) if label != IGNORED]
    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    results = {name: loss.item() for name, loss in losses.items()}
    assert results == pytest.approx({name: np.mean(cost) for name, cost in costs.items()}, rel=2e-5)
    assert inputs.num_terms("mlm") == len(costs["mlm"])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_last_layer_reaches_the_head_through_the_vector_alone(tokenizer: Tokenizer, pooling: Pooling) -> None:
    model, given = objective(pooling=pooling), batch(tokenizer)
    outputs: list[Tensor] = []
    for layer in model.model.bert.encoder.layer:
        layer.register_forward_hook(lambda module, inputs, out: outputs.append(out))
    losses = model.encode(given)[1]
    early, late = outputs  # each layer has run once, over the real tokens

    (of_head,) = torch.autograd.grad(losses["head"], late, retain_graph=True)
    (of_mlm,) = torch.autograd.grad(losses["mlm"], late, retain_graph=True)

    mask, first = given.text.tokens.mask, torch.zeros_like(given.text.tokens.mask)
    first[:, 0] = True
    assert torch.equal(of_head.abs().amax(-1) > 0, first[mask] if pooling == "cls" else mask[mask])
    assert torch.equal(of_mlm.abs().amax(-1) > 0, given.text.labels[mask] != IGNORED)
    (of_head,) = torch.autograd.grad(losses["head"], early)
    assert (of_head.abs().amax(-1) > 0).all()


def test_texts_of_a_batch_do_not_meet(tokenizer: Tokenizer) -> None:
    model, given = objective(), batch(tokenizer)
    embedded: list[Tensor] = []
    model.model.bert.embeddings.register_forward_hook(lambda module, inputs, out: embedded.append(out))

    _, _, headed_BLH = model.head(model.model, given.text.tokens)

    (of_row,) = torch.autograd.grad(headed_BLH[2].square().sum(), embedded[0])
    assert of_row[2].abs().max() > 1e-4
    of_row[2] = 0
    assert not of_row.any()


def test_the_vocabulary_head_is_shared_and_sees_asked_positions_alone(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, seen = objective(), batch(tokenizer), []
    head = model.model.vocabulary
    monkeypatch.setattr(model.model, "vocabulary", lambda hidden: seen.append(len(hidden)) or head(hidden))

    model.encode(inputs)[1]["head"].backward()

    assert seen == [inputs.num_terms("mlm")] * 2
    assert {name.partition(".")[0] for name, _ in model.head.named_parameters()} == {"layers"}
    assert model.model.cls.predictions.transform.dense.weight.grad is not None
    assert all(parameter.grad is not None for parameter in model.head.parameters())


def test_the_head_starts_as_bert_does_and_leaves_the_model_as_it_is() -> None:
    model = tiny_bert()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    head = Head(model, 4, 1, "cls")

    matrices = torch.cat([value.flatten() for value in head.parameters() if value.ndim > 1])
    assert matrices.std().item() == pytest.approx(0.02, rel=0.03)
    for name, value in head.named_parameters():
        assert value.ndim > 1 or (value == (1 if "orm.weight" in name else 0)).all(), name
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_model_alone_sees_what_it_sees_with_the_head(tokenizer: Tokenizer) -> None:
    model, inputs = objective(), batch(tokenizer).text.tokens

    vectors_BH, late_BLH, _ = model.head(model.model, inputs)

    assert torch.equal(late_BLH, model.model.bert(inputs.ids, inputs.mask))
    assert torch.equal(vectors_BH, late_BLH[:, 0])
