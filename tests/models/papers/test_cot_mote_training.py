"""Which parameters of CoT-MoTE's encoders learn from which texts."""

import dataclasses
from typing import Any

import pytest
import torch

from models.papers.cot_mote import (
    Batch,
    Pretraining,
    Settings,
    make_batch,
)
from models.pretraining import RawBatch
from models.retrievers.towers import Towers
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.models.papers.test_cot_mote import BOTH, DENSE, batch, begin, objective


@pytest.mark.parametrize("kind", ["l1", "softmax"])
def test_texts_without_words(tokenizer: Tokenizer, kind: Any) -> None:
    settings = dataclasses.replace(BOTH, lexical_bottleneck=kind)
    model, inputs = (
        objective(settings),
        make_batch(RawBatch([[], []], [[], [20]]), tokenizer, settings, RowRandom(0, 0)),
    )

    losses = model.encode(inputs)[1]
    sum(losses.values()).backward()

    assert losses["mlm_passage"] == 0
    assert all(loss.isfinite() for loss in losses.values())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def touched(model: Pretraining, inputs: Batch, role: str) -> set[str]:
    """Which parameters the losses of one kind of text train, of the towers by `query.` and `passage.`."""
    model.zero_grad()
    losses = model.encode(inputs)[1]
    sum(loss for name, loss in losses.items() if role in name).backward()
    named = [(f"{tower}.{name}", parameter) for tower in ("query", "passage")
             for name, parameter in getattr(model.encoder, tower).named_parameters()]  # fmt: skip
    return {name for name, parameter in named if parameter.grad is not None and parameter.grad.any()}


@pytest.mark.parametrize("switched", [False, True])
def test_each_expert_learns_from_one_kind_of_text(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched)
    model, inputs = objective(settings), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        reader, idle = (other, role) if switched else (role, other)
        names = touched(model, inputs, role)
        assert f"{reader}.bert.encoder.layer.0.intermediate.dense.weight" in names
        assert not any("intermediate" in name or name.endswith("1.output.LayerNorm.weight") for name in names
                       if name.startswith(idle))  # fmt: skip
        assert {f"{name}.bert.encoder.layer.1.attention.self.value.weight" for name in (reader, idle)} <= names
        assert {f"{name}.cls.predictions.bias" for name in (reader, idle)} <= names


@pytest.mark.parametrize("switched", [False, True])
def test_separate_towers_have_the_decoders_layers_alone_in_common(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched, query_target="passage")
    model, inputs = objective(settings, "separate"), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        names = touched(model, inputs, role)
        assert {name.partition(".")[0] for name in names} == {other if switched else role}
        assert all(weight.grad is not None and weight.grad.any() for name, weight in model.decoder.named_parameters()
                   if not name.endswith("key.bias"))  # fmt: skip


def test_a_step_on_passages_leaves_the_queries_expert_as_it_is(tokenizer: Tokenizer) -> None:
    model, inputs = objective(dataclasses.replace(BOTH, query_target="none")), batch(tokenizer, BOTH)
    layer = model.encoder.query.bert.encoder.layer[0]
    expert, attention = (
        linear.weight.detach().clone() for linear in (layer.output.dense, layer.attention.output.dense)
    )

    model.losses("passage", inputs)["decode_passage_dense"].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()

    assert torch.equal(layer.output.dense.weight, expert)
    assert not torch.equal(layer.attention.output.dense.weight, attention)


def learned(model: Pretraining, inputs: Batch, steps: int, seed: int, rate: float = 1e-2) -> list[dict[str, float]]:
    optimiser = torch.optim.Adam(model.train().parameters(), lr=rate)
    losses = []
    for step in range(steps):
        results = gradients(model, inputs, None, (seed, step))
        losses.append({name: loss.item() for name, loss in results.items()})
        optimiser.step()
        optimiser.zero_grad()
    return losses


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("settings", [DENSE, BOTH], ids=["dense", "both"])
def test_a_siamese_encoder_is_a_mixture_of_tied_experts(tokenizer: Tokenizer, settings: Settings) -> None:
    def run(towers: Towers, *, tied: bool) -> list[dict[str, float]]:
        begun = begin(towers, dropout=0.1)
        if tied:
            for own, other in zip(
                begun.encoder.query.bert.encoder.layer, begun.encoder.passage.bert.encoder.layer, strict=True
            ):
                own.intermediate, own.output = other.intermediate, other.output
        torch.manual_seed(1)
        return learned(Pretraining(begun, settings), batch(tokenizer, settings), 5, seed=0, rate=1e-3)

    siamese, tied, mixture = run("siamese", tied=False), run("mixture", tied=True), run("mixture", tied=False)

    assert siamese == tied
    assert mixture[0] == siamese[0]
    assert mixture[4] != siamese[4]


def test_parameters_have_one_name_each() -> None:
    model = Pretraining(begin("mixture"), BOTH)

    parts = {name.partition(".")[0] for name, _ in model.named_parameters()}
    heads = {id(parameter) for parameter in model.parameters()} - {
        id(parameter) for parameter in model.encoder.parameters()
    }
    assert parts == {"model", "encoder", "decoder"}
    assert (
        heads
        == {id(parameter) for parameter in model.decoder.parameters()}
        == {id(e) for e in model.query_decoder.parameters()}
    )
    assert not model.eval().query_decoder.training
