"""Every family against `transformers`: hidden states of all layers, logits, gradients, and files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM

from models import backbones
from models.layers.unpadding import Packing
from models.model_files import UnusableModel
from models.tokens import Tokens, pad
from tests.tiny import PIECES
from tests.tiny_families import ALIKE, FAMILIES, tiny_family, tiny_network

LENGTHS = {"padded": (17, 5, 30, 2), "without padding": (9, 9), "one text": (13,), "maximum length": (40, 3)}
every_family = pytest.mark.parametrize("family", FAMILIES | ALIKE)


def texts(lengths: tuple[int, ...], padding: int) -> Tokens:
    random = torch.Generator().manual_seed(1)
    return pad([torch.randint(5, len(PIECES), (n,), generator=random).tolist() for n in lengths], padding)


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@every_family
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_states_logits_and_gradients(family: str, lengths: tuple[int, ...], tmp_path: Path) -> None:
    network = tiny_network(family)
    network.save_pretrained(tmp_path)
    model = backbones.load(tmp_path).eval()
    tokens = texts(lengths, network.config.pad_token_id)
    expected = network(input_ids=tokens.ids, attention_mask=tokens.mask.long(), output_hidden_states=True)
    weights = torch.randn(expected.logits[tokens.mask].shape, generator=torch.Generator().manual_seed(2))

    packing = Packing(tokens.mask)
    hidden = packing.packed(model.embed(tokens.ids))
    for layer, states in zip(model.layers, expected.hidden_states, strict=False):
        close(hidden, states[tokens.mask])
        hidden = model.run([layer], hidden, packing)
    close(model.final_norm(hidden), expected.hidden_states[-1][tokens.mask])
    logits = model.vocabulary(model(tokens)[tokens.mask])
    close(logits, expected.logits[tokens.mask])
    assert not model(tokens)[~tokens.mask].any()
    close(model.first_states(tokens), expected.hidden_states[-1][:, 0])

    (logits * weights).sum().backward()
    (expected.logits[tokens.mask] * weights).sum().backward()
    reference = {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    results = {name.removeprefix("network."): value.grad for name, value in model.named_parameters()}
    largest = max(gradient.abs().max().item() for gradient in reference.values())
    assert len(reference) > 20
    for name, gradient in reference.items():
        torch.testing.assert_close(results[name], gradient, atol=1e-5 * max(1.0, largest), rtol=1e-4)


@every_family
def test_files(family: str, tmp_path: Path) -> None:
    network = tiny_network(family)
    network.save_pretrained(tmp_path / "start")
    model = backbones.load(tmp_path / "start")
    model.configure_dropout(0.25)

    (tmp_path / "end").mkdir()
    model.save(tmp_path / "end")

    reopened = AutoModelForMaskedLM.from_pretrained(tmp_path / "end").eval()
    tokens = texts(LENGTHS["padded"], network.config.pad_token_id)
    logits = (part(tokens.ids, attention_mask=tokens.mask.long()).logits[tokens.mask] for part in (network, reopened))
    close(*logits)
    sizes = backbones.sizes(tmp_path / "end")
    assert (sizes.hidden_dropout_prob, sizes.attention_probs_dropout_prob) == (0.25, 0.25)
    assert (sizes.hidden_size, sizes.intermediate_size, sizes.max_position_embeddings) == (32, 48, 40)
    assert all(module.p == 0.25 for module in reopened.modules() if isinstance(module, torch.nn.Dropout) and module.p)


@every_family
def test_a_missing_head_is_new_and_other_missing_weights_are_refused(family: str, tmp_path: Path) -> None:
    network: Any = tiny_network(family)
    body: Any = AutoModel.from_config(network.config)
    body.load_state_dict(network.base_model.state_dict(), strict=False)
    body.save_pretrained(tmp_path)
    model = backbones.load(tmp_path).eval()

    tokens = texts((7, 12), network.config.pad_token_id)
    close(model(tokens), network.base_model(tokens.ids, attention_mask=tokens.mask.long())[0] * tokens.mask[..., None])
    assert model.vocabulary(model(tokens)[tokens.mask]).isfinite().all()
    weights = load_file(tmp_path / "model.safetensors")
    first = next(name for name in weights if ".1." in name)
    save_file({name: value for name, value in weights.items() if name != first}, tmp_path / "model.safetensors")
    with pytest.raises(UnusableModel, match="1 weights are missing"):
        backbones.load(tmp_path)


def test_an_unknown_family_is_refused_with_those_supported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "longformer"}')

    with pytest.raises(UnusableModel, match=r"expected model_type bert, camembert, deberta-v2, .*, found longformer"):
        backbones.load(tmp_path)
    assert set(backbones.families()) == {"bert", *FAMILIES, *ALIKE}


def test_the_newer_head_of_deberta_is_kept_or_refused(tmp_path: Path) -> None:
    network = tiny_network("deberta-v2", legacy=False)
    network.save_pretrained(tmp_path)
    tokens = texts((7, 12), network.config.pad_token_id)
    model = backbones.load(tmp_path).eval()
    logits = network(tokens.ids, attention_mask=tokens.mask.long()).logits[tokens.mask]
    close(model.vocabulary(model(tokens)[tokens.mask]), logits)

    config = json.loads((tmp_path / "config.json").read_text())
    del config["legacy"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnusableModel, match=r'config.json: .* head lm_predictions; add "legacy": false'):
        backbones.load(tmp_path)


@every_family
def test_random_weights_are_float32_whatever_the_configuration_says(family: str, tmp_path: Path) -> None:
    network = tiny_network(family)
    network.to(torch.bfloat16).save_pretrained(tmp_path)

    model = backbones.create(tmp_path)

    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@every_family
def test_dropout_is_set_where_it_was_built_without(family: str, tmp_path: Path) -> None:
    without, usual = (tiny_family(tmp_path, family, attention_dropout=rate) for rate in (0.0, 0.1))

    without.set_dropout(0.3)
    usual.set_dropout(0.3)

    rates, expected = (
        [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] for model in (without, usual)
    )
    assert rates == expected
    assert set(rates) == {0.3}


def test_mpnet_has_the_positions_of_transformers_with_another_padding_id(tmp_path: Path) -> None:
    network = tiny_network("mpnet", pad_token_id=0)
    network.save_pretrained(tmp_path)
    tokens = texts(LENGTHS["one text"], 0)
    close(backbones.load(tmp_path).eval()(tokens), network.base_model(tokens.ids)[0])
