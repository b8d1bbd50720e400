"""Which parameters of CoT-MoTE's encoders learn from which texts."""

import dataclasses
from typing import Any

import numpy as np
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
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.models.papers.test_cot_mote import BOTH, DENSE, batch, begin, objective


@pytest.mark.parametrize("kind", ["l1", "softmax"])
def test_texts_without_words(tokenizer: Tokenizer, kind: Any) -> None:
    settings = dataclasses.replace(BOTH, lexical_bottleneck=kind)
    made, given = (
        objective(settings),
        make_batch(RawBatch([[], []], [[], [20]]), tokenizer, settings, np.random.default_rng(0)),
    )

    losses = made.encode(given)[1]
    sum(losses.values()).backward()

    assert losses["mlm_passage"] == 0
    assert all(loss.isfinite() for loss in losses.values())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in made.parameters())


def touched(made: Pretraining, given: Batch, role: str) -> set[str]:
    """Which parameters the losses of one kind of text train, of the towers by `query.` and `passage.`."""
    made.zero_grad()
    losses = made.encode(given)[1]
    sum(loss for name, loss in losses.items() if role in name).backward()
    named = [(f"{tower}.{name}", each) for tower in ("query", "passage")
             for name, each in getattr(made.encoder, tower).named_parameters()]  # fmt: skip
    return {name for name, each in named if each.grad is not None and each.grad.any()}


@pytest.mark.parametrize("switched", [False, True])
def test_each_expert_learns_from_one_kind_of_text(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched)
    made, given = objective(settings), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        reader, idle = (other, role) if switched else (role, other)
        names = touched(made, given, role)
        assert f"{reader}.bert.encoder.layer.0.intermediate.dense.weight" in names
        assert not any("intermediate" in name or name.endswith("1.output.LayerNorm.weight") for name in names
                       if name.startswith(idle))  # fmt: skip
        assert {f"{each}.bert.encoder.layer.1.attention.self.value.weight" for each in (reader, idle)} <= names
        assert {f"{each}.cls.predictions.bias" for each in (reader, idle)} <= names


@pytest.mark.parametrize("switched", [False, True])
def test_separate_towers_have_the_decoders_layers_alone_in_common(tokenizer: Tokenizer, switched: bool) -> None:
    settings = dataclasses.replace(BOTH, switched=switched, query_target="passage")
    made, given = objective(settings, "separate"), batch(tokenizer, settings)

    for role, other in (("query", "passage"), ("passage", "query")):
        names = touched(made, given, role)
        assert {name.partition(".")[0] for name in names} == {other if switched else role}
        assert all(each.grad is not None and each.grad.any() for name, each in made.decoder.named_parameters()
                   if not name.endswith("key.bias"))  # fmt: skip


def test_a_step_on_passages_leaves_the_queries_expert_as_it_is(tokenizer: Tokenizer) -> None:
    made, given = objective(dataclasses.replace(BOTH, query_target="none")), batch(tokenizer, BOTH)
    layer = made.encoder.query.bert.encoder.layer[0]
    expert, attention = (each.weight.detach().clone() for each in (layer.output.dense, layer.attention.output.dense))

    made.losses("passage", given)["decode_passage_dense"].backward()
    torch.optim.SGD(made.parameters(), lr=0.1).step()

    assert torch.equal(layer.output.dense.weight, expert)
    assert not torch.equal(layer.attention.output.dense.weight, attention)


def learned(made: Pretraining, given: Batch, steps: int, seed: int, rate: float = 1e-2) -> list[dict[str, float]]:
    optimiser = torch.optim.Adam(made.train().parameters(), lr=rate)
    losses = []
    for step in range(steps):
        found = gradients(made, given, None, (seed, step))
        losses.append({name: loss.item() for name, loss in found.items()})
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
    made = Pretraining(begin("mixture"), BOTH)

    parts = {name.partition(".")[0] for name, _ in made.named_parameters()}
    heads = {id(parameter) for parameter in made.parameters()} - {
        id(parameter) for parameter in made.encoder.parameters()
    }
    assert parts == {"model", "encoder", "decoder"}
    assert (
        heads
        == {id(parameter) for parameter in made.decoder.parameters()}
        == {id(e) for e in made.query_decoder.parameters()}
    )
    assert not made.eval().query_decoder.training
