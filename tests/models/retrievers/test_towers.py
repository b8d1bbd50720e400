"""Two encoders that share some parts: what is one, what is two, and that files keep it so."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers
from torch import Tensor, nn

from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from models.representation import Pooling, Role
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.towers import Towers, build_encoders, sharing
from models.tokens import Tokens, pad
from tests.tiny import tiny_bert

TEXTS = pad([[2, 20, 21, 60, 3], [2, 33, 3], [2, 14, 15, 16, 17, 18, 19, 3]])
KINDS: tuple[Towers, ...] = get_args(Towers)
EXPERT = {"intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight", "output.dense.bias"}
NORM = {"output.LayerNorm.weight", "output.LayerNorm.bias"}


def encoder(kind: Towers, *, pooling: Pooling = "cls", apart: bool = False) -> DenseEncoder:
    """Towers of a kind; where `apart`, after each parameter went its own way."""
    built = build_encoders(DenseEncoder(tiny_bert(), pooling), kind)
    if apart:
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def own_names(encoder: DenseEncoder) -> set[str]:
    """The parameters of the queries' tower that passages do not use."""
    shared = {id(parameter) for parameter in encoder.passage.parameters()}
    return {name for name, parameter in encoder.query.named_parameters() if id(parameter) not in shared}


def in_layers(names: set[str]) -> set[str]:
    return {f"bert.encoder.layer.{layer}.{name}" for layer in range(2) for name in names}


def test_what_queries_have_of_their_own() -> None:
    assert own_names(encoder("siamese")) == set()
    assert own_names(encoder("mixture_shared_norm")) == in_layers(EXPERT)
    assert own_names(encoder("mixture")) == in_layers(EXPERT | NORM)
    assert own_names(encoder("separate")) == {name for name, _ in tiny_bert().named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_both_routes_start_as_the_given_bert(kind: Towers) -> None:
    reference, built = tiny_bert().eval(), encoder(kind)

    hidden = reference.bert(TEXTS.ids, TEXTS.mask)

    for role in get_args(Role):
        tower = built.tower(role)
        assert (tower.bert(TEXTS.ids, TEXTS.mask) - hidden).abs().max() == 0
        assert (tower.vocabulary(hidden) - reference.vocabulary(hidden)).abs().max() == 0
        torch.testing.assert_close(built(TEXTS, role).dense, hidden[:, 0])
    assert sharing(built) == kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_passages_alone(kind: Towers) -> None:
    built, before = encoder(kind).train(), encoder(kind)
    optimiser = torch.optim.AdamW(built.parameters(), lr=0.01, weight_decay=0.0)

    built(TEXTS, "passage").dense.square().sum().backward()
    optimiser.step()

    # The vocabulary head and what no text reaches have no part in it.
    changed = {
        name
        for (name, value), old in zip(built.query.named_parameters(), before.query.parameters(), strict=True)
        if not torch.equal(value, old)
    }
    layers = {name for name, _ in built.query.named_parameters() if name.startswith("bert.encoder.layer")}
    expected = layers - own_names(built)
    assert changed & layers - {name for name in layers if name.endswith("key.bias")} == {
        name
        for name in expected
        if not name.endswith("key.bias")  # which a softmax cancels
    }
    assert ("bert.embeddings.word_embeddings.weight" in changed) == (kind != "separate")


def test_parameters_for_the_shape_of_bert_base() -> None:
    with torch.device("meta"):
        model = BertForMaskedLM(BertConfig(30522, 768, 12, 12, 3072))

    def added(kind: Towers) -> int:
        built = build_encoders(DenseEncoder(model, "cls"), kind)
        return sum(parameter.numel() for parameter in built.parameters()) - sum(
            parameter.numel() for parameter in model.parameters()
        )

    # 12 layers with two matrices of 768 x 3072 and their biases; then a LayerNorm each; then everything again.
    assert added("siamese") == 0
    assert added("mixture_shared_norm") == 56_669_184
    assert added("mixture") == 56_687_616
    assert added("separate") == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_files_keep_weights_and_sharing(kind: Towers, pooling: Pooling, tmp_path: Path) -> None:
    built = encoder(kind, pooling=pooling, apart=True)

    towers.save(built, tmp_path)
    loaded = towers.load(tmp_path)

    assert sharing(loaded) == kind
    assert own_names(loaded) == own_names(built)
    assert not loaded.training
    for role in get_args(Role):
        assert torch.equal(loaded(TEXTS, role).dense, built(TEXTS, role).dense)
        assert equal(loaded.tower(role), built.tower(role))
    assert (kind == "siamese") == torch.equal(built(TEXTS, "query").dense, built(TEXTS, "passage").dense)
    assert (tmp_path / "query").exists() == (kind != "siamese")


def equal(one: nn.Module, other: nn.Module) -> bool:
    weights: dict[str, Tensor] = other.state_dict()
    return all(torch.equal(value, weights[name]) for name, value in one.state_dict().items())


@torch.no_grad()
def test_each_tower_opens_in_transformers(tmp_path: Path) -> None:
    towers.save(built := encoder("mixture", apart=True), tmp_path)

    for role, folder in (("passage", tmp_path), ("query", tmp_path / "query")):
        theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        hidden = theirs(TEXTS.ids, attention_mask=TEXTS.mask.long()).last_hidden_state
        torch.testing.assert_close(built(TEXTS, role).dense, hidden[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mixture", "separate"])
def test_two_towers_can_be_raised_from_two(kind: Towers) -> None:
    again = build_encoders(encoder("mixture", apart=True), kind)

    assert sharing(again) == kind
    assert equal(again.query, again.passage)


def test_a_mixture_trains_what_is_shared_by_both(tmp_path: Path) -> None:
    towers.save(encoder("mixture"), tmp_path)
    loaded = towers.load(tmp_path).train()

    def gradient(role: Role) -> Tensor:
        loaded.zero_grad()
        loaded(some(role), role).dense.square().sum().backward()
        result = loaded.passage.bert.encoder.layer[0].attention.self.query.weight.grad
        assert result is not None
        return result.clone()

    def some(role: Role) -> Tokens:
        return TEXTS.rows(0, 1) if role == "query" else TEXTS.rows(1, 3)

    one, other = gradient("query"), gradient("passage")
    loaded.zero_grad()
    (
        loaded(some("query"), "query").dense.square().sum() + loaded(some("passage"), "passage").dense.square().sum()
    ).backward()
    both = loaded.query.bert.encoder.layer[0].attention.self.query.weight.grad
    torch.testing.assert_close(both, one + other)
    assert one.abs().max() > 1e-4 < other.abs().max()


@pytest.mark.parametrize("change", ["unknown", "no folder"])
def test_a_folder_that_does_not_hold_what_it_says(change: str, tmp_path: Path) -> None:
    towers.save(encoder("mixture"), tmp_path)
    if change == "unknown":
        (tmp_path / "towers.json").write_text(json.dumps({"towers": "twins"}))
    else:
        (tmp_path / "query").rename(tmp_path / "queries")

    with pytest.raises(ValueError, match=r"towers.json: expected towers of siamese, .*separate and a folder query"):
        towers.load(tmp_path)
