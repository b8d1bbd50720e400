"""On every family, what an objective derives from a text's vector reaches the encoder's last layer there only."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.layers.backbone import Backbone
from models.layers.unpadding import Packing
from models.masking import IGNORED
from models.tokens import Tokenizer
from tests.models.families.test_objectives import KINDS, batch, objective
from tests.tiny_families import FAMILIES

VECTOR_ONLY = {
    "co_condenser": ("head", "contrast"), "condenser": ("head",), "cot_mae, auto-regressive": ("context",),
    "cot_mae, masked": ("context",), "cpdae, words": ("reconstruction", "contrast"), "ict": ("contrast",),
    "prop": ("ranking",), "retro_mae, embedded": ("decoder",), "retro_mae, sum": ("decoder",), "seed": ("decoder",),
    "sim_cse": ("contrast",), "cot_mote, mixture": ("decode_query_dense", "decode_passage_dense"),
    "dup_mae, printed": ("decoder",), "dup_mae, released": ("decoder",),
}  # fmt: skip
"""The losses that read a text's first state only; the others read the states of masked or of all tokens."""
FAST = ("modernbert", "roberta")
every_family = pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in FAST else pytest.mark.slow) for family in FAMILIES]
)
States = list[tuple[Tensor, Packing]]


def last_states(model: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[States, dict[str, Tensor]]:
    """The states after the last layer of each pass through the encoder, and the losses."""
    states: States = []

    def watched(backbone: Backbone) -> None:
        run = backbone.run

        def recorded(layers: Iterable[Any], hidden: Tensor, packing: Packing) -> Tensor:
            layers = list(layers)
            out = run(layers, hidden, packing)
            if layers[-1] is backbone.layers[-1]:
                states.append((out, packing))
            return out

        monkeypatch.setattr(backbone, "run", recorded)

    for backbone in model.modules():
        if isinstance(backbone, Backbone):
            watched(backbone)
    vectors, losses = model.encode(inputs)
    return states, {**losses, **model.compare(vectors, inputs)}


def reached(loss: Tensor, states: Tensor, packing: Packing) -> Tensor:
    """[B, L], True at the tokens whose states the loss depends on."""
    (gradient,) = torch.autograd.grad(loss, states, retain_graph=True, allow_unused=True)
    return packing.padded(torch.zeros_like(states) if gradient is None else gradient).abs().amax(-1) > 0


@pytest.mark.parametrize(("family", "name"), [
    pytest.param(family, name, marks=() if family in FAST else pytest.mark.slow)
    for family in FAMILIES for name in VECTOR_ONLY if family in FAST or name in KINDS
])  # fmt: skip
def test_a_loss_of_the_vector_reaches_first_states_only(
    family: str, name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(family, name, tmp_path), batch(name, tokenizer)
    states, losses = last_states(model, inputs, monkeypatch)

    for loss in VECTOR_ONLY[name]:
        texts = [reached(losses[loss], *state) for state in states]
        assert not any(text[:, 1:].any() for text in texts), loss
        # A text that has nothing to predict, such as a context without a masked word, has no gradient.
        assert max(text[:, 0].float().mean().item() for text in texts) >= 0.5, loss


@every_family
@pytest.mark.parametrize("name", ["dup_mae, printed", "dup_mae, released"])
def test_the_bag_of_words_reaches_pooled_tokens_only(
    family: str, name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(family, name, tmp_path), batch(name, tokenizer)
    [state], losses = last_states(model, inputs, monkeypatch)

    of_bag = reached(losses["bow"], *state)

    assert of_bag.any(1).all()
    assert not of_bag[:, 0].any()
    assert (of_bag & (inputs.labels != IGNORED)).any() == (not model.settings.exclude_masked)
