"""DupMAE: its bag of words against loops over tokens and words written from the formulas; RetroMAE's part is its."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.layers.max_logits import max_of_logits
from models.masking import IGNORED
from models.papers import retro_mae
from models.papers.dup_mae import (
    Batch,
    BowTarget,
    Pretraining,
    Settings,
    bow_loss,
    make_batch,
    word_weights,
)
from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.models.papers.test_retro_mae import slow_losses
from tests.slow import Array, bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import PIECES, start

RELEASED = Settings(
    text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="embedded", max_tokens=20, cls_decoding=True,
    ot_decoding=True, bow_weight=0.1, bow_target="mean_over_length", exclude_masked=False, ot_head="tied",
)  # fmt: skip
PRINTED = dataclasses.replace(
    RELEASED, query_stream="sum", bow_weight=1.0, bow_target="sum_over_set", exclude_masked=True, ot_head="own"
)
TIED_EXCLUDED = dataclasses.replace(RELEASED, exclude_masked=True, bow_target="mean_over_set")
OWN_INCLUDED = dataclasses.replace(RELEASED, ot_head="own")
OT_ALONE = dataclasses.replace(RELEASED, cls_decoding=False)
CLS_ALONE = dataclasses.replace(RELEASED, ot_decoding=False, bow_weight=None)
ALL = {
    "released": RELEASED, "printed": PRINTED, "tied, excluded": TIED_EXCLUDED, "own, included": OWN_INCLUDED,
    "ot": OT_ALONE, "cls": CLS_ALONE,
}  # fmt: skip
EACH = pytest.mark.parametrize("settings", ALL.values(), ids=ALL)
BAGS = pytest.mark.parametrize("settings", [variant for variant in ALL.values() if variant.ot_decoding])
CLS, SEP = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]"))


def batch(tokenizer: Tokenizer, settings: Settings, sizes: Sequence[int] = (30, 9, 18, 4)) -> Batch:
    random = np.random.default_rng(0)
    texts = [random.integers(5, len(PIECES), size=n).tolist() for n in sizes]
    return make_batch(RawBatch(texts), tokenizer, settings, RowRandom(0, 0))


def objective(settings: Settings, *, dropout: float = 0.0) -> Pretraining:
    model = Pretraining(start(dropout=dropout), settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("model."):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# The losses, slowly


def slow_bow(w: dict[str, Array], inputs: Batch, settings: Settings, projection: Array | None) -> float:
    """Equations 6-8: one text, one word and one token at a time."""
    of_texts = []
    for number, mask in enumerate(inputs.text.mask):
        length = int(mask.sum())
        hidden = bert_layers(w, inputs.text.ids[number, :length].tolist())[-1]
        scores = vocabulary(hidden, w) if projection is None else hidden @ projection.T
        pool = [
            position for position in range(1, length)
            if not (settings.exclude_masked and inputs.labels[number, position] != IGNORED)
        ]  # fmt: skip
        mu = np.array([max(scores[position, word] for position in pool) for word in range(len(PIECES))])
        text = inputs.original[number, 1 : length - 1].tolist()
        weight = {"mean_over_length": 1 / len(text), "sum_over_set": 1.0, "mean_over_set": 1 / len(set(text))}
        logs = log_softmax(mu)
        of_texts.append(-sum(weight[settings.bow_target] * logs[word] for word in set(text)))
    return float(np.mean(of_texts))


@EACH
@pytest.mark.usefixtures("fixed_masks")
@torch.no_grad()
def test_losses_are_the_formulas(tokenizer: Tokenizer, settings: Settings) -> None:
    model, inputs = objective(settings).eval(), batch(tokenizer, settings)

    vectors, losses = model.encode(inputs)

    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    w = numbers(model.model)
    decoder = numbers(model.decoder if settings.cls_decoding else objective(RELEASED).decoder)
    expected = slow_losses(w, decoder, inputs, settings, "cls")
    if not settings.cls_decoding:
        del expected["decoder"]
    if settings.bow_weight is not None:
        projection = numbers(model.projection)["weight"] if settings.ot_head == "own" else None
        expected["bow"] = settings.bow_weight * slow_bow(w, inputs, settings, projection)
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, abs=1e-4, rel=1e-5)


@torch.no_grad()
def test_the_rest_is_retro_mae(tokenizer: Tokenizer) -> None:
    model, inputs = objective(CLS_ALONE), batch(tokenizer, CLS_ALONE)
    settings = retro_mae.Settings(text_mask_rate=0.3, decoder_mask_rate=0.5, query_stream="embedded", max_tokens=20)
    other = retro_mae.Pretraining(start(), settings)
    other.load_state_dict(model.state_dict())

    torch.manual_seed(5)
    losses = model.encode(inputs)[1]
    torch.manual_seed(5)

    assert losses == other.encode(inputs)[1]
    drawn = RawBatch([[20, 21, 60, 61, 30]])
    plain = retro_mae.make_batch(drawn, tokenizer, settings, RowRandom(3, 0))
    ours = make_batch(drawn, tokenizer, CLS_ALONE, RowRandom(3, 0))
    assert torch.equal(ours.text.ids, plain.text.ids)
    assert torch.equal(ours.original, plain.original)


# The bag of words by hand


@pytest.mark.parametrize(
    ("target", "weight"), [("mean_over_length", 1 / 4), ("sum_over_set", 1.0), ("mean_over_set", 1 / 3)]
)
def test_what_words_count(target: BowTarget, weight: float) -> None:
    ids = torch.tensor([[CLS, 7, 9, 7, SEP, SEP, 0], [CLS, SEP, 0, 0, 0, 0, 0]])
    own = torch.tensor([[False, True, True, True, True, False, False], [False] * 7])  # one text says "[SEP]" itself

    weights = word_weights(ids, own, 12, target)

    assert weights.shape == (2, 12)
    assert {word: value for word, value in enumerate(weights[0].tolist()) if value} == pytest.approx(
        {SEP: weight, 7: weight, 9: weight}
    )
    assert not weights[1].any()


def test_maxima_and_their_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[1.0, 5.0, 0.0], [2.0, 3.0, -1.0], [0.0, 0.0, 0.0], [-3.0, -2.0, -9.0]])

    mu = max_of_logits(logits, torch.tensor([[False, True, True], [False, False, True], [True, False, False]]))

    assert mu.tolist() == [[2, 5, 0], [0, 0, 0], [-3, -2, -9]]
    loss = bow_loss(mu, torch.tensor([[0.5, 0, 0.5], [1, 0, 0], [0, 0, 0]]))
    of_first = -0.5 * (2 + 0) + np.log(np.exp([2, 5, 0]).sum())
    assert loss.item() == pytest.approx((of_first + np.log(3) + 0) / 3, rel=1e-6)


# What must not influence what


@BAGS
def test_the_bag_reaches_pooled_tokens_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings)
    hidden = model.model.bert(inputs.text.ids, inputs.text.mask).detach().requires_grad_()
    monkeypatch.setattr(model.model.bert, "forward", lambda ids, mask, **known: hidden)

    (of_bow,) = torch.autograd.grad(model.encode(inputs)[1]["bow"], hidden)

    allowed = inputs.text.mask.clone()
    allowed[:, 0] = False
    if settings.exclude_masked:
        allowed &= inputs.labels == IGNORED
    reached = of_bow.abs().amax(-1) > 0
    assert not (reached & ~allowed).any()
    assert reached.any(1).all()
    masked = (inputs.labels != IGNORED) & reached
    assert masked.any() == (not settings.exclude_masked)


@EACH
@torch.no_grad()
def test_no_position_passes_a_vocabulary_head_twice(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = objective(settings), batch(tokenizer, settings)
    passed = {"head": [], "own": []}
    head = model.model.vocabulary

    def counted(hidden: Tensor) -> Tensor:
        passed["head"].append(len(hidden))
        return head(hidden)

    monkeypatch.setattr(model.model, "vocabulary", counted)
    if hasattr(model, "projection"):
        model.projection.register_forward_pre_hook(lambda module, inputs: passed["own"].append(len(inputs[0])))
    model.encode(given)

    ordinary, masked = int(given.text.mask[:, 1:].sum()), given.num_terms("mlm")
    tied = settings.ot_decoding and settings.ot_head == "tied"
    decoded = [given.num_terms("decoder")] if settings.cls_decoding else []
    assert passed["head"] == [ordinary if tied else masked, *decoded]
    if settings.ot_decoding and not tied:
        assert passed["own"] == [ordinary - masked if settings.exclude_masked else ordinary]


def test_only_what_is_trained_is_there() -> None:
    def heads(settings: Settings) -> set[str]:
        return {name.partition(".")[0] for name, _ in objective(settings).named_parameters()} - {"model"}

    assert heads(RELEASED) == heads(CLS_ALONE) == {"decoder"}
    assert heads(PRINTED) == {"decoder", "projection"}
    assert heads(OT_ALONE) == set()
    projection = Pretraining(start(), PRINTED).projection
    assert projection.bias is None
    assert projection.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_means(tokenizer: Tokenizer) -> None:
    inputs = batch(tokenizer, RELEASED)

    part = inputs.rows(1, 3)

    assert isinstance(part, Batch)
    assert part.num_terms("bow") == 2
    assert part.num_terms("decoder") == 9 + 18
    assert part.num_terms("mlm") == int((inputs.labels[1:3] != IGNORED).sum())


def test_a_text_all_masked_still_has_its_end_to_pool(tokenizer: Tokenizer) -> None:
    settings = dataclasses.replace(TIED_EXCLUDED, text_mask_rate=1.0)
    model, inputs = objective(settings), batch(tokenizer, settings)

    assert ((inputs.labels != IGNORED) == (inputs.words >= 0)).all()
    assert model.encode(inputs)[1]["bow"].isfinite()


@EACH
@pytest.mark.parametrize("sizes", [(0, 0), (0, 6, 1)])
def test_texts_without_words_have_finite_losses_and_gradients(
    tokenizer: Tokenizer, settings: Settings, sizes: Sequence[int]
) -> None:
    model, inputs = objective(settings), batch(tokenizer, settings, sizes)

    losses = model.encode(inputs)[1]
    torch.stack(list(losses.values())).sum().backward()

    assert all(loss.isfinite() for loss in losses.values())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
