"""Every paper's objective on every family: finite, learning, and with no way around a text's vector."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.layers.packed_attention import sliding_window
from models.layers.unpadding import Packing
from models.pretraining import Initialisation
from models.retrievers import towers
from models.retrievers.bi_encoder import DenseEncoder
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests import tokenizers
from tests.models.papers.test_cpdae import TERMS
from tests.models.papers.test_training import PAPERS
from tests.tiny_families import FAMILIES, tiny_family

NAMES = (
    "co_condenser", "condenser", "cot_mae, auto-regressive", "cot_mae, masked", "cot_mote, mixture", "cpdae, words",
    "dup_mae, printed", "dup_mae, released", "ict", "masked_lm", "prop", "retro_mae, embedded", "retro_mae, sum",
    "seed", "sim_cse",
)  # fmt: skip
"""Each paper, with the settings that read the backbone in different ways."""
FAST = {("roberta", "masked_lm"), ("electra", "retro_mae, embedded")} | {
    ("modernbert", name)
    for name in (
        "condenser",
        "cot_mae, auto-regressive",
        "cot_mote, mixture",
        "dup_mae, released",
        "retro_mae, embedded",
    )
}
KINDS = (
    "condenser", "cot_mae, masked", "cot_mote, mixture", "dup_mae, released", "retro_mae, embedded", "sim_cse",
)  # fmt: skip
"""Objectives with a head, a decoder, experts, a bag of words, embeddings as the decoder's input, and none of these."""
SLOW = {("modernbert", name) for name in NAMES} | {(family, name) for family in FAMILIES for name in KINDS}
"""Each objective on ModernBERT, which differs most from BERT; some are fast tests. Each kind on each family."""
EACH = [
    pytest.param(family, name, marks=() if (family, name) in FAST else pytest.mark.slow, id=f"{family}, {name}")
    for family, name in sorted(FAST | SLOW)
]


def objective(family: str, name: str, folder: Path, **changes: Any) -> Any:
    """A paper's objective on a tiny model with weights as they are at the beginning of a pre-training."""
    model = tiny_family(folder, family, spread=0.02, **changes)
    kind: Any = name.removeprefix("cot_mote, ") if name.startswith("cot_mote") else "siamese"
    encoder = towers.build_encoders(DenseEncoder(model, "cls"), kind)
    paper = PAPERS[name]
    settings = dataclasses.replace(paper.settings, **paper.learned)
    torch.manual_seed(0)
    return paper.tests.Pretraining(Initialisation(encoder, TERMS), settings).train()


def batch(name: str, tokenizer: Tokenizer) -> Any:
    paper = PAPERS[name]
    return paper.tests.batch(tokenizer, dataclasses.replace(paper.settings, **paper.learned))


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack([loss.float() for loss in losses.values()]).sum()


@pytest.mark.parametrize(("family", "name"), EACH)
@pytest.mark.usefixtures("store")
def test_ten_steps_learn_and_bfloat16_is_near(family: str, name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model, inputs = objective(family, name, tmp_path), batch(name, tokenizer)

    def losses() -> dict[str, Tensor]:
        torch.manual_seed(1)
        vectors, local = model.encode(inputs)
        return {**local, **model.compare(vectors, inputs)}

    exact = losses()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = losses()
    total(mixed).backward()
    for loss, value in mixed.items():
        assert value.item() == pytest.approx(exact[loss].item(), rel=0.05, abs=0.05), loss
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)

    optimiser, history = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for step in range(10):
        optimiser.zero_grad()
        history.append(total(gradients(model, inputs, None, (0, step))).item())
        optimiser.step()
    assert history[-1] < 0.95 * history[0]


DECODERS = {"cot_mae, auto-regressive": "context", "cot_mae, masked": "context", "retro_mae, sum": "decoder",
            "retro_mae, embedded": "decoder", "seed": "decoder"}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind"), [("modernbert", "wordpiece"), ("roberta", "byte_level"), ("xlm-roberta", "sentencepiece")]
)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reaches_the_encoder_through_the_vector_only(
    family: str, kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(tokenizers.fast(kind))
    sizes = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad}
    model, inputs = objective(family, name, tmp_path, **sizes), batch(name, tokenizer)
    texts = inputs.tokens if name == "seed" else inputs.text
    hidden = model.model(texts).detach().requires_grad_()
    monkeypatch.setattr(model.model, "forward", lambda tokens: hidden)

    loss = model.encode(inputs)[1][DECODERS[name]]
    of_positions = model.decoder.own_positions.weight
    (of_hidden,) = torch.autograd.grad(loss, hidden, retain_graph=True)

    # A context of which no word is masked has no loss; the words, and so the masks, are those of the tokenizer's kind.
    assert (of_hidden[:, 0].abs().amax(1) > 0).sum() >= len(of_hidden) - 1
    assert not of_hidden[:, 1:].any()
    assert (of_positions is None) == (family != "modernbert")
    if of_positions is not None:
        assert torch.autograd.grad(loss, of_positions)[0][1:5].abs().amax(1).min() > 0


@pytest.mark.parametrize("name", ["dup_mae, printed", "dup_mae, released"])
def test_a_nan_at_padding_reaches_no_loss(
    name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DupMAE's released code takes its maximum over padding too, less 1000: one NaN there makes all losses NaN."""
    model, inputs = objective("modernbert", name, tmp_path), batch(name, tokenizer)
    states = model.model(inputs.text)
    poisoned = states.masked_fill(~inputs.text.mask[..., None], torch.nan)
    assert poisoned.isnan().any()

    losses = []
    for hidden in (states, poisoned):
        monkeypatch.setattr(model.model, "forward", lambda tokens, hidden=hidden: hidden)
        torch.manual_seed(1)
        losses.append(total(model.encode(inputs)[1]))
    losses[1].backward()

    assert torch.equal(*losses)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_rows_of_padding_see_themselves_however_far_they_are_from_the_text() -> None:
    """A window of 3 tokens at padding contains no token, and the softmax over nothing is 0 / 0."""
    mask = torch.tensor([[True] * 3 + [False] * 9, [True] * 12])

    packing = sliding_window(Packing(mask), 3)

    assert packing.visible is not None
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 3
    assert packing.visible.any(-1).all()
    assert torch.equal(packing.visible[1, 0], near)
    assert torch.equal(packing.visible[0, 0, :6], near[:6] & mask[0])
    assert torch.equal(packing.visible[0, 0, 6:], torch.eye(12, dtype=torch.bool)[6:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixture_shares_all_but_the_feed_forward_layers(family: str, tmp_path: Path) -> None:
    passage = tiny_family(tmp_path, family)
    kinds: list[towers.Towers] = ["siamese", "mixture", "mixture_shared_norm", "separate"]
    own = {kind: _own_parameters(towers.build_encoders(DenseEncoder(passage, "cls"), kind)) for kind in kinds}
    norms = {f"{name}.{part}" for name in _paths(passage, (passage.feed_forward_norm,)) for part in ("weight", "bias")}
    experts = set(_paths(passage, passage.feed_forward))

    assert own["siamese"] == set()
    assert own["separate"] == {name for name, _ in passage.named_parameters()}
    assert own["mixture"] - own["mixture_shared_norm"] == norms & own["separate"]
    assert own["mixture_shared_norm"]
    assert all(any(name.startswith(f"{path}.") for path in experts) for name in own["mixture_shared_norm"])
    encoder = towers.build_encoders(DenseEncoder(passage, "cls"), "mixture")
    with torch.no_grad():
        encoder.query.layers[1].get_submodule(passage.feed_forward[0]).apply(_doubled)
    (tmp_path / "saved").mkdir()
    towers.save(encoder, tmp_path / "saved")
    loaded = towers.load(tmp_path / "saved")
    assert towers.sharing(loaded) == "mixture"
    for role in ("query", "passage"):
        expected, result = encoder.tower(role).state_dict(), loaded.tower(role).state_dict()
        assert all(torch.equal(result[name], value) for name, value in expected.items())


def _own_parameters(encoder: DenseEncoder) -> set[str]:
    """The names of the query encoder's parameters that the passage encoder does not have."""
    shared = {id(parameter) for parameter in encoder.passage.parameters()}
    return {name for name, parameter in encoder.query.named_parameters() if id(parameter) not in shared}


def _paths(model: Any, paths: tuple[str, ...]) -> list[str]:
    names: dict[Any, str] = {module: name for name, module in model.named_modules()}
    return [names[layer.get_submodule(path)] for layer in model.layers for path in paths]


def _doubled(module: torch.nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.mul_(2)
