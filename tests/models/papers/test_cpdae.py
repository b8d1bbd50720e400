"""CPDAE: its two views, and its losses against loops written from the formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED
from models.objective import Losses
from models.papers.cpdae import (
    Batch,
    Pretraining,
    Settings,
    idf_weights,
    make_batch,
    reconstruction_losses,
)
from models.pretraining import RawBatch, TermCounts
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.slow import Array, bert_layers, dense, gelu, log_softmax, norm, numbers, vocabulary
from tests.tiny import PIECES, start

V = len(PIECES)
CLS, SEP, UNK, MASK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]", "[MASK]"))
COUNTS = np.random.default_rng(3).integers(0, 40, size=V)
COUNTS[7], COUNTS[8] = 0, 50
TERMS = TermCounts(num_texts=50, document_frequency=COUNTS, collection_frequency=COUNTS * 2)
WORDS = Settings(
    mask_rate=0.15, weighting="none", contrast="words", contrast_weight=0.1, contrast_temperature=1.0, anchors="first",
    contrast_reduction="sum", reconstruction_reduction="sum", max_tokens=20,
)  # fmt: skip
HIDDEN = dataclasses.replace(WORDS, contrast="hidden", contrast_temperature=0.05)
NONE = {"contrast_weight": None, "contrast_temperature": None, "anchors": None, "contrast_reduction": None}
ALONE = dataclasses.replace(WORDS, contrast="none", **NONE)


def batch(tokenizer: Tokenizer, settings: Settings = WORDS, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    texts = [random.integers(5, V, size=n).tolist() for n in (30, 9, 18, 4, 25)]
    texts[1][3] = UNK
    return make_batch(RawBatch(texts, terms=TERMS), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings = WORDS, *, dropout: float = 0.0, pooling: str = "cls") -> Pretraining:
    model = Pretraining(start(dropout=dropout, pooling=pooling, terms=TERMS), settings)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def losses_of(model: Pretraining, inputs: Batch) -> Losses:
    vectors, local = model.encode(inputs)
    return {**local, **model.compare(vectors, inputs)}


# Batches


def test_views_are_two_masks_of_one_crop_and_the_words_are_the_crops(tokenizer: Tokenizer) -> None:
    inputs = batch(tokenizer, dataclasses.replace(WORDS, mask_rate=0.5))

    whole = torch.where(inputs.labels != IGNORED, inputs.labels, inputs.views.ids)
    assert torch.equal(whole[:, 0], whole[:, 1])
    assert (inputs.labels[:, 0] != inputs.labels[:, 1]).any(1).all()
    assert whole.shape == (5, 2, 20)
    for row, length in enumerate((20, 11, 20, 6, 20)):
        text, words = whole[row, 0][inputs.views.mask[row, 0]].tolist(), inputs.words[row]
        assert (text[0], text[-1], len(text)) == (CLS, SEP, length)
        assert words[words != IGNORED].tolist() == sorted(set(text) - {CLS, SEP, UNK})
    assert UNK in whole
    for name in ("mlm", "reconstruction"):
        assert inputs.num_terms(name) == sum(inputs.rows(n, n + 1).num_terms(name) for n in range(5))
    assert inputs.num_terms("reconstruction") == 5


def test_masks_are_berts(tokenizer: Tokenizer) -> None:
    texts = [np.random.default_rng(n).integers(5, V, size=18).tolist() for n in range(300)]

    inputs = make_batch(RawBatch(texts), tokenizer, WORDS, RowRandom(0, 0))

    labelled = inputs.labels != IGNORED
    assert (labelled.sum(-1) == 3).all()  # round(0.15 * 18) tokens, not words
    masked_times = labelled.flatten(0, 1).sum(0)[1:-1]
    assert masked_times.min() > 60  # 100 each are expected
    masked = (inputs.views.ids[labelled] == MASK).double().mean().item()
    assert masked == pytest.approx(0.8, abs=0.04)
    both = (labelled[:, 0] & labelled[:, 1]).sum(1).double().mean().item()
    assert both == pytest.approx(0.5, abs=0.15)  # 3 * 3 / 18 if the two masks know nothing of each other


# Losses, slowly


def slow_logits(model: Pretraining, vector: Array) -> Array:
    w = numbers(model.decoder)
    hidden = norm(gelu(dense(vector[None], w, "transform.dense")), w, "transform.LayerNorm")
    return dense(hidden, w, "vocabulary")[0]


def slow_js(p: Array, q: Array) -> float:
    m = (p + q) / 2
    return sum((a * math.log(a / c) + b * math.log(b / c)) / 2 for a, b, c in zip(p, q, m, strict=True))


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def slow_losses(model: Pretraining, inputs: Batch, settings: Settings) -> dict[str, float]:
    """All from the formulas: texts one by one, words one by one."""
    w, occurring = numbers(model.model), [n for n in range(V) if COUNTS[n]]
    idf = [math.log(51 / max(1, COUNTS[n])) for n in range(V)]
    mean = sum(idf[n] for n in occurring) / len(occurring)
    mlm, rec, z, h = [], [], [], []
    for text in range(len(inputs)):
        for view in range(2):
            mask = inputs.views.mask[text, view]
            ids, labels = inputs.views.ids[text, view][mask].tolist(), inputs.labels[text, view][mask].tolist()
            last = bert_layers(w, ids)[-1]
            logs = log_softmax(vocabulary(last, w))
            mlm += [-logs[position, label] for position, label in enumerate(labels) if label != IGNORED]
            h.append(last[0] if model.pooling == "cls" else last.mean(0))
            z.append(slow_logits(model, h[-1]))
            words = {label if label != IGNORED else number for number, label in zip(ids, labels, strict=True)}
            words -= {CLS, SEP, UNK}
            chances = sigmoid(z[-1])
            terms = [-math.log(chances[n]) if n in words else -math.log(1 - chances[n]) for n in range(V)]
            if settings.weighting == "idf":
                terms = [term * idf[n] / mean for n, term in enumerate(terms)]
            by = {"sum": 1, "per_positive": len(words), "mean": V}[settings.reconstruction_reduction]
            rec.append(sum(terms) / by)
    results = {"mlm": np.mean(mlm), "reconstruction": np.mean(rec)}
    if settings.contrast == "none":
        return results
    shares = [sigmoid(logit) / sigmoid(logit).sum() for logit in z]

    def similarity(i: int, k: int) -> float:
        if settings.contrast == "words":
            return -slow_js(shares[i], shares[k]) / settings.contrast_temperature
        return h[i] @ h[k] / np.sqrt(h[i] @ h[i] * (h[k] @ h[k])) / settings.contrast_temperature

    anchors = []
    for i in range(0, len(z), 1 if settings.anchors == "both" else 2):
        partner = i + 1 if i % 2 == 0 else i - 1
        others = sum(math.exp(similarity(i, k)) for k in range(len(z)) if k != i)
        anchors.append(-math.log(math.exp(similarity(i, partner)) / others))
    total = sum(anchors) / (1 if settings.contrast_reduction == "sum" else len(anchors))
    return {**results, "contrast": settings.contrast_weight * total}


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        (WORDS, "cls"),
        (WORDS, "mean"),
        (dataclasses.replace(WORDS, anchors="both", contrast_reduction="mean", contrast_temperature=0.3), "cls"),
        (dataclasses.replace(WORDS, reconstruction_reduction="per_positive", contrast_weight=2.0), "cls"),
        (dataclasses.replace(HIDDEN, anchors="both"), "cls"),
        (dataclasses.replace(HIDDEN, contrast_reduction="mean"), "cls"),
        (dataclasses.replace(ALONE, weighting="idf"), "cls"),
        (dataclasses.replace(ALONE, weighting="idf", reconstruction_reduction="mean"), "cls"),
    ],
)
def test_losses_by_the_formulas(tokenizer: Tokenizer, settings: Settings, pooling: str) -> None:
    model, inputs = objective(settings, pooling=pooling).eval(), batch(tokenizer)

    losses = losses_of(model, inputs)

    expected = slow_losses(model, inputs, settings)
    assert set(losses) == set(expected)
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(expected[name], rel=2e-5, abs=1e-5), name


def test_the_reconstructions_gradient_is_chance_minus_target() -> None:
    logits = (torch.randn(3, V, dtype=torch.double, generator=torch.Generator().manual_seed(0)) * 30).requires_grad_()
    words = torch.tensor([[9, 12, 20], [5, IGNORED, IGNORED], [IGNORED] * 3])
    weights = torch.rand(V, dtype=torch.double)

    losses = reconstruction_losses(logits, words, weights)
    losses.sum().backward()

    target = torch.zeros(3, V)
    target[0, [9, 12, 20]] = target[1, 5] = 1
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, (logits.detach().sigmoid() - target) * weights)
    assert losses.isfinite().all()


def test_a_reconstruction_of_nothing_is_finite(tokenizer: Tokenizer) -> None:
    settings = dataclasses.replace(WORDS, reconstruction_reduction="per_positive")
    inputs = make_batch(RawBatch([[], []]), tokenizer, settings, RowRandom(0, 0))

    losses = losses_of(objective(settings), inputs)

    assert all(loss.isfinite() for loss in losses.values())
    assert losses["mlm"] == 0


def test_idf_is_large_for_rare_words_and_one_on_average() -> None:
    weights = idf_weights(TERMS, V + 2)

    assert weights[torch.tensor([*COUNTS.tolist(), 0, 0]) > 0].mean().item() == pytest.approx(1, abs=1e-6)
    assert 0 < weights[8] < weights[int(np.argmin(np.where(COUNTS > 0, COUNTS, 99)))] <= weights[7] == weights[V]
    assert torch.equal(
        torch.argsort(weights[:V], stable=True), torch.argsort(-torch.tensor(COUNTS).clamp(min=1), stable=True)
    )


# Word distributions


def logits(rows: int = 7, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(1)) * spread - 4


@pytest.mark.parametrize("settings", [WORDS, HIDDEN])
def test_reconstruction_and_contrast_reach_the_encoder_through_the_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(settings), batch(tokenizer)
    hidden = model.model.bert(inputs.views.ids.flatten(0, 1), inputs.views.mask.flatten(0, 1)).detach().requires_grad_()
    passes: list[int] = []
    monkeypatch.setattr(model.model.bert, "forward", lambda ids, mask, **known: passes.append(len(ids)) or hidden)

    losses = losses_of(model, inputs)
    of_mlm, of_words, of_contrast = (
        torch.autograd.grad(losses[name], hidden, retain_graph=True)[0]
        for name in ("mlm", "reconstruction", "contrast")
    )

    assert passes == [10]  # each view once
    for gradient in (of_words, of_contrast):
        assert (gradient[:, 0].abs().amax(1) > 1e-7).all()
        assert not gradient[:, 1:].any()
    assert torch.equal(of_mlm.abs().amax(-1) > 0, inputs.labels.flatten(0, 1) != IGNORED)
