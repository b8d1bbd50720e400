"""SimCSE: its two readings, and its contrast against loops written from the formula."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.layers.bert_config import CONFIG
from models.layers.bert_layers import SelfAttention
from models.objective import Losses
from models.papers.sim_cse import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.representation import Pooling
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.slow import Array, bert_layers, dense, numbers
from tests.tiny import PIECES, SHAPE, random_texts, start

SETTINGS = Settings(temperature=0.05, dropout=0.1, max_tokens=20)
CLS, SEP = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]"))


def texts(count: int = 6, longest: int = 30, seed: int = 0) -> list[list[int]]:
    return random_texts(count, longest, np.random.default_rng(seed))


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(RawBatch(texts(seed=seed)), tokenizer, settings, RowRandom(seed, 0))


def objective(
    settings: Settings = SETTINGS, *, pooling: Pooling = "cls", dropout: float = 0.0, spread: float = 0.2
) -> Pretraining:
    model = Pretraining(start(pooling=pooling, dropout=dropout, spread=spread), settings)
    with torch.no_grad():
        for parameter in model.projection.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


# Batches


def test_texts_are_cropped_and_not_masked(tokenizer: Tokenizer) -> None:
    inputs = texts(60)

    batch = make_batch(RawBatch(inputs), tokenizer, SETTINGS, RowRandom(0, 0))

    for ids, mask, text in zip(batch.text.ids, batch.text.mask, inputs, strict=True):
        read = ids[mask].tolist()
        assert (read[0], read[-1], len(read)) == (CLS, SEP, min(20, len(text) + 2))
        assert " ".join(map(str, read[1:-1])) in " ".join(map(str, text))


def test_rows_of_a_batch_and_equal_seeds(tokenizer: Tokenizer) -> None:
    whole, again = batch(tokenizer), batch(tokenizer)

    assert len(whole) == 6
    assert torch.equal(whole.text.ids, again.text.ids)
    assert torch.equal(whole.rows(1, 4).text.ids, whole.text.ids[1:4])


# Dropout


def test_the_network_drops_what_the_settings_say_and_is_saved_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = objective(dataclasses.replace(SETTINGS, dropout=0.3), dropout=0.2)

    dropped = [module.p for module in model.model.modules() if isinstance(module, nn.Dropout)]
    dropped += [module.dropout for module in model.model.modules() if isinstance(module, SelfAttention)]
    model.model.save(tmp_path)
    saved = json.loads((tmp_path / CONFIG).read_text())

    assert dropped == [0.3] * (1 + 3 * SHAPE["num_hidden_layers"])
    assert saved["hidden_dropout_prob"] == saved["attention_probs_dropout_prob"] == 0.2
    assert model.model.config.hidden_dropout_prob == model.model.config.attention_probs_dropout_prob == 0.2


def test_attention_drops_too(tokenizer: Tokenizer) -> None:
    model, inputs = objective(dropout=0.0).train(), batch(tokenizer)
    for module in model.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    (first, second), _ = model.encode(inputs)

    assert ((first - second).abs().amax(1) > 1e-4).all()


def test_readings_differ_in_training_alone_and_are_drawn_from_the_seed(tokenizer: Tokenizer) -> None:
    model, inputs = objective(dropout=0.0), batch(tokenizer)

    def readings(seed: int) -> tuple[Tensor, ...]:
        torch.manual_seed(seed)
        vectors, local = model.encode(inputs)
        assert local == {}
        return vectors

    model.train()
    (first, second), again, other = readings(0), readings(0), readings(1)
    assert ((first - second).abs().amax(1) > 1e-3).all()
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.allclose(first, other[0], atol=1e-3)
    model.eval()
    assert torch.equal(*readings(0))


# The loss


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@torch.no_grad()
def test_readings_slowly(tokenizer: Tokenizer, pooling: Pooling) -> None:
    model, inputs = objective(pooling=pooling).eval(), batch(tokenizer)

    (first, second), _ = model.encode(inputs)

    w, own = numbers(model.model), numbers(model)
    expected = []
    for ids, mask in zip(inputs.text.ids, inputs.text.mask, strict=True):
        hidden = bert_layers(w, ids[mask].tolist())[-1]
        expected.append(np.tanh(dense(hidden[0] if pooling == "cls" else hidden.mean(0), own, "projection")))
    np.testing.assert_allclose(first.numpy(), np.stack(expected), atol=1e-4)
    assert torch.equal(first, second)


def slow_contrast(first: Array, second: Array, temperature: float) -> float:
    """The mean over i of -log(e^(cos(z_i, z'_i) / tau) / sum over j of e^(cos(z_i, z'_j) / tau))."""
    costs = []
    for i, z in enumerate(first):
        scores = [z @ other / math.sqrt((z @ z) * (other @ other)) / temperature for other in second]
        costs.append(math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[i])
    return float(np.mean(costs))


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_loss_slowly(tokenizer: Tokenizer, temperature: float) -> None:
    model, inputs = objective(dataclasses.replace(SETTINGS, temperature=temperature)), batch(tokenizer)
    random = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, SHAPE["hidden_size"], generator=random) * 3 for _ in range(2))

    losses = model.compare((first, second), inputs)

    expected = slow_contrast(first.double().numpy(), second.double().numpy(), temperature)
    other_way = slow_contrast(second.double().numpy(), first.double().numpy(), temperature)
    assert {name: loss.item() for name, loss in losses.items()} == {"contrast": pytest.approx(expected, rel=1e-5)}
    assert abs(expected - other_way) > 1e-4 * expected  # first readings look for second ones


def test_a_vectors_length_does_not_count(tokenizer: Tokenizer) -> None:
    model, inputs, random = objective(), batch(tokenizer), torch.Generator().manual_seed(0)
    first, second, lengths = (torch.rand(6, size, generator=random) for size in (32, 32, 1))

    results = [
        model.compare(views, inputs)["contrast"] for views in ((first, second), (first * (lengths + 0.1), second * 7))
    ]

    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_both_readings_learn_and_through_the_vector_alone(tokenizer: Tokenizer) -> None:
    model, given = objective().train(), batch(tokenizer)
    outputs: list[Tensor] = []
    model.model.bert.encoder.layer[-1].register_forward_hook(lambda module, inputs, out: outputs.append(out))

    model.compare(model.encode(given)[0], given)["contrast"].backward(inputs=outputs)

    assert len(outputs) == 2
    first = torch.zeros_like(given.text.mask)
    first[:, 0] = True
    for output in outputs:
        assert torch.equal(output.grad.abs().amax(1) > 0, first[given.text.mask])


def test_the_projection_is_no_part_of_the_model(tokenizer: Tokenizer) -> None:
    model = objective()
    heads = {name for name, _ in model.named_parameters() if not name.startswith("model.")}

    assert heads == {"projection.weight", "projection.bias"}
    fresh = Pretraining(start(), SETTINGS).projection
    assert fresh.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not fresh.bias.any()


@pytest.mark.usefixtures("store")
def test_chunks_without_dropout_are_the_whole_batch(tokenizer: Tokenizer) -> None:
    model, inputs = objective(spread=0.1).eval(), batch(tokenizer)
    results: list[tuple[Losses, dict[str, Tensor]]] = []
    for chunk in (None, 2):
        model.zero_grad()
        losses = {name: loss.detach() for name, loss in gradients(model, inputs, chunk, (3, 5)).items()}
        results.append(
            (
                losses,
                {
                    name: parameter.grad.clone()
                    for name, parameter in model.named_parameters()
                    if parameter.grad is not None
                },
            )
        )

    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)
