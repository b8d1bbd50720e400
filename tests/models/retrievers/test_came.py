"""CAME's experts against the plain BERT, and their competition against loops written from equations 7 to 11."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.retrievers.came import Experts
from models.tokens import pad
from tests.tiny import SHAPE, tiny_bert

VIEWS = ("dense", "late", "lexical")
TEXTS = pad([[2, 20, 21, 60, 3], [2, 33, 3], [2, 14, 15, 16, 17, 18, 19, 3]])


def three_layers(*, dropout: float = 0.0) -> BertForMaskedLM:
    """A BERT of random weights."""
    torch.manual_seed(0)
    shape = {**SHAPE, "num_hidden_layers": 3}
    model = BertForMaskedLM(BertConfig(**shape, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    disturb(model)
    return model


@torch.no_grad()
def disturb(module: nn.Module) -> None:
    """Let each parameter go its own way."""
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)


# Experts


@pytest.mark.parametrize("shared_layers", [0, 1, 2, 3])
@torch.no_grad()
def test_all_experts_start_as_the_plain_bert(shared_layers: int) -> None:
    model = three_layers()

    results = Experts(model, VIEWS, shared_layers)(model, TEXTS)

    expected = model.bert(TEXTS.ids, TEXTS.mask)
    assert tuple(results) == VIEWS
    assert all((hidden - expected).abs().max() == 0 for hidden in results.values())


@pytest.mark.parametrize("shared_layers", [0, 1, 2])
@pytest.mark.parametrize("views", [("lexical", "late", "dense"), ("dense", "lexical"), ("lexical", "late")])
@torch.no_grad()
def test_an_expert_reads_the_shared_layers_and_its_own(views: tuple[str, ...], shared_layers: int) -> None:
    model = three_layers()
    experts = Experts(model, views, shared_layers)
    disturb(experts)

    results = experts(model, TEXTS)

    assert tuple(results) == views
    owner = min(views)  # the first of dense, late, lexical
    for view in views:
        single = three_layers()  # the same weights, then this expert's
        for name, tensor in experts.state_dict().items():
            _, of, inner = name.split(".", 2)
            if of == view:
                single.bert.encoder.layer.state_dict()[inner].copy_(tensor)
        torch.testing.assert_close(results[view], single.bert(TEXTS.ids, TEXTS.mask), atol=0, rtol=0)
        plain = model.bert(TEXTS.ids, TEXTS.mask)
        assert torch.equal(results[view], plain) == (view == owner)


def test_nothing_is_held_but_the_private_layers() -> None:
    model = three_layers()
    layer = model.bert.encoder.layer[2].state_dict()

    experts = Experts(model, VIEWS, 2)

    assert set(experts.state_dict()) == {f"private.{view}.2.{name}" for view in ("late", "lexical") for name in layer}
    assert not {id(parameter) for parameter in experts.parameters()} & {
        id(parameter) for parameter in model.parameters()
    }
    assert len(list(experts.parameters())) == 2 * len(layer)


@pytest.mark.parametrize(("views", "shared_layers"), [(VIEWS, 3), (("lexical",), 1), (("late",), 0)])
def test_where_nothing_is_private_nothing_is_held(views: tuple[str, ...], shared_layers: int) -> None:
    assert not Experts(three_layers(), views, shared_layers).state_dict()


def test_private_layers_are_taken_up_again_by_name() -> None:
    model = three_layers()
    experts, other = Experts(model, VIEWS, 1), Experts(model, VIEWS, 1)
    disturb(experts)

    other.load_state_dict(experts.state_dict())

    for view, hidden in experts(model, TEXTS).items():
        assert torch.equal(other(model, TEXTS)[view], hidden)


@torch.no_grad()
def test_padding_is_never_attended_to() -> None:
    model = three_layers()
    experts = Experts(model, VIEWS, 1)
    disturb(experts)

    padded, alone = experts(model, TEXTS), experts(model, pad([[2, 33, 3]]))

    for view in VIEWS:
        torch.testing.assert_close(padded[view][1, :3], alone[view][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("shared_layers", "runs"), [(0, [3, 3, 3]), (1, [1, 3, 3]), (3, [1, 1, 1])])
def test_shared_layers_run_once(shared_layers: int, runs: list[int]) -> None:
    model = three_layers()
    experts, seen = Experts(model, VIEWS, shared_layers), [0, 0, 0]
    embedded: list[None] = []
    model.bert.embeddings.register_forward_hook(lambda *_: embedded.append(None))

    def counting(number: int) -> Callable[..., None]:
        def count(*_: object) -> None:
            seen[number] += 1

        return count

    for number in range(3):
        copies = [layer for name, layer in experts.named_modules() if name.endswith(f".{number}")]
        for layer in [model.bert.encoder.layer[number], *copies]:
            layer.register_forward_hook(counting(number))
    experts(model, TEXTS)

    assert seen == runs
    assert len(embedded) == 1


@pytest.mark.parametrize("shared_layers", [1, 3])
def test_dropout_is_that_of_bert(shared_layers: int) -> None:
    model = three_layers(dropout=0.5)
    experts = Experts(model, VIEWS, shared_layers)

    torch.manual_seed(1)
    expected = model.bert(TEXTS.ids, TEXTS.mask)
    torch.manual_seed(1)
    results = experts(model, TEXTS)

    assert torch.equal(results["dense"], expected)
    # Below, one drawn mask serves all; above, each expert draws its own.
    assert torch.equal(results["late"], expected) == (shared_layers == 3)
    assert torch.equal(experts.eval()(model.eval(), TEXTS)["late"], model.bert(TEXTS.ids, TEXTS.mask))


@pytest.mark.parametrize("shared_layers", [-1, 3])
def test_shared_layers_out_of_range(shared_layers: int) -> None:
    with pytest.raises(ValueError, match=f"shared_layers: expected 0 to 2, the model's layers, found {shared_layers}"):
        Experts(tiny_bert(), VIEWS, shared_layers)
