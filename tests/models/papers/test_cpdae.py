"""CPDAE: its two views, and its losses against loops written from the formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED
from models.objective import Losses
from models.papers import cpdae
from models.papers.cpdae import (
    Batch,
    Pretraining,
    Settings,
    divergences,
    idf_weights,
    make_batch,
    reconstruction_losses,
)
from models.pretraining import RawBatch, TermCounts
from models.tokens import Tokenizer
from tasks.training import grad_cache as loop
from tests.slow import Array, bert_layers, dense, gelu, log_softmax, norm, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start

V = len(PIECES)
CLS, SEP, UNK, MASK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]", "[MASK]"))
COUNTS = np.random.default_rng(3).integers(0, 40, size=V)
COUNTS[7], COUNTS[8] = 0, 50
TERMS = TermCounts(num_texts=50, texts=COUNTS, occurrences=COUNTS * 2)
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
    return make_batch(RawBatch(texts, terms=TERMS), tokenizer, settings, random)


def objective(settings: Settings = WORDS, *, dropout: float = 0.0, pooling: str = "cls") -> Pretraining:
    made = Pretraining(start(dropout=dropout, pooling=pooling, terms=TERMS), settings)
    with torch.no_grad():
        for parameter in made.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def losses_of(made: Pretraining, given: Batch) -> Losses:
    vectors, local = made.encode(given)
    return {**local, **made.compare(vectors, given)}


# Batches


def test_views_are_two_masks_of_one_crop_and_the_words_are_the_crops(tokenizer: Tokenizer) -> None:
    given = batch(tokenizer, dataclasses.replace(WORDS, mask_rate=0.5))

    whole = torch.where(given.labels != IGNORED, given.labels, given.views.ids)
    assert torch.equal(whole[:, 0], whole[:, 1])
    assert (given.labels[:, 0] != given.labels[:, 1]).any(1).all()
    assert whole.shape == (5, 2, 20)
    for row, length in enumerate((20, 11, 20, 6, 20)):
        text, words = whole[row, 0][given.views.mask[row, 0]].tolist(), given.words[row]
        assert (text[0], text[-1], len(text)) == (CLS, SEP, length)
        assert words[words != IGNORED].tolist() == sorted(set(text) - {CLS, SEP, UNK})
    assert UNK in whole
    for name in ("mlm", "reconstruction"):
        assert given.num_terms(name) == sum(given.rows(n, n + 1).num_terms(name) for n in range(5))
    assert given.num_terms("reconstruction") == 5


def test_masks_are_berts(tokenizer: Tokenizer) -> None:
    texts = [np.random.default_rng(n).integers(5, V, size=18).tolist() for n in range(300)]

    given = make_batch(RawBatch(texts), tokenizer, WORDS, np.random.default_rng(0))

    asked = given.labels != IGNORED
    assert (asked.sum(-1) == 3).all()  # round(0.15 * 18) tokens, not words
    places = asked.flatten(0, 1).sum(0)[1:-1]
    assert places.min() > 60  # 100 each are expected
    masked = (given.views.ids[asked] == MASK).double().mean().item()
    assert masked == pytest.approx(0.8, abs=0.04)
    both = (asked[:, 0] & asked[:, 1]).sum(1).double().mean().item()
    assert both == pytest.approx(0.5, abs=0.15)  # 3 * 3 / 18 if the two masks know nothing of each other


def test_equal_seeds_draw_equally(tokenizer: Tokenizer) -> None:
    one, same, other = (batch(tokenizer, seed=n) for n in (0, 0, 1))

    assert torch.equal(one.views.ids, same.views.ids)
    assert losses_of(objective(), one) == losses_of(objective(), same)
    assert not torch.equal(one.views.ids[:, :, :4], other.views.ids[:, :, :4])


# Losses, slowly


def slow_logits(made: Pretraining, vector: Array) -> Array:
    w = numbers(made.decoder)
    hidden = norm(gelu(dense(vector[None], w, "transform.dense")), w, "transform.LayerNorm")
    return dense(hidden, w, "vocabulary")[0]


def slow_js(p: Array, q: Array) -> float:
    m = (p + q) / 2
    return sum((a * math.log(a / c) + b * math.log(b / c)) / 2 for a, b, c in zip(p, q, m, strict=True))


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def slow_losses(made: Pretraining, given: Batch, settings: Settings) -> dict[str, float]:
    """All from the formulas: texts one by one, words one by one."""
    w, occurring = numbers(made.model), [n for n in range(V) if COUNTS[n]]
    idf = [math.log(51 / max(1, COUNTS[n])) for n in range(V)]
    mean = sum(idf[n] for n in occurring) / len(occurring)
    mlm, rec, z, h = [], [], [], []
    for text in range(len(given)):
        for view in range(2):
            mask = given.views.mask[text, view]
            ids, labels = given.views.ids[text, view][mask].tolist(), given.labels[text, view][mask].tolist()
            last = bert_layers(w, ids)[-1]
            logs = log_softmax(vocabulary(last, w))
            mlm += [-logs[place, label] for place, label in enumerate(labels) if label != IGNORED]
            h.append(last[0] if made.pooling == "cls" else last.mean(0))
            z.append(slow_logits(made, h[-1]))
            words = {label if label != IGNORED else number for number, label in zip(ids, labels, strict=True)}
            words -= {CLS, SEP, UNK}
            chances = sigmoid(z[-1])
            terms = [-math.log(chances[n]) if n in words else -math.log(1 - chances[n]) for n in range(V)]
            if settings.weighting == "idf":
                terms = [term * idf[n] / mean for n, term in enumerate(terms)]
            by = {"sum": 1, "per_positive": len(words), "mean": V}[settings.reconstruction_reduction]
            rec.append(sum(terms) / by)
    found = {"mlm": np.mean(mlm), "reconstruction": np.mean(rec)}
    if settings.contrast == "none":
        return found
    shares = [sigmoid(each) / sigmoid(each).sum() for each in z]

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
    return {**found, "contrast": settings.contrast_weight * total}


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
    made, given = objective(settings, pooling=pooling).eval(), batch(tokenizer)

    losses = losses_of(made, given)

    expected = slow_losses(made, given, settings)
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
    given = make_batch(RawBatch([[], []]), tokenizer, settings, np.random.default_rng(0))

    losses = losses_of(objective(settings), given)

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


@pytest.mark.parametrize("at_once", [1, 2 * 7 * V, 2**22])
@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0])
def test_divergences_in_blocks_are_those_of_all_pairs(
    at_once: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpdae, "NUMBERS_AT_ONCE", at_once)
    given = logits(spread=spread).requires_grad_()
    weights = torch.randn(7, 7, generator=torch.Generator().manual_seed(2))

    found = divergences(given)
    (found * weights).sum().backward()

    z = given.detach().double().requires_grad_()
    shares = z.sigmoid() / z.sigmoid().sum(1, keepdim=True)
    p, q = shares[:, None], shares[None]
    m = (p + q) / 2
    direct = (torch.xlogy(p, p / m) + torch.xlogy(q, q / m)).sum(-1) / 2
    direct = torch.where(torch.eye(7, dtype=torch.bool), 0.0, direct)
    (direct * weights).sum().backward()
    torch.testing.assert_close(found.double(), direct, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(given.grad.double(), z.grad, atol=3e-6, rtol=1e-4)


def test_divergences_are_symmetric_and_bounded() -> None:
    given = torch.full((4, V), -40.0)
    given[0, 5] = given[1, 6] = given[2, 5] = 40.0  # all mass on one word
    given[3] = logits(1)

    found = divergences(given)

    assert torch.equal(found, found.T)
    torch.testing.assert_close(found.diagonal(), torch.zeros(4), atol=1e-6, rtol=0)
    assert found[0, 1].item() == pytest.approx(math.log(2), abs=1e-6)
    assert found[0, 2].item() == pytest.approx(0, abs=1e-6)
    assert (found < math.log(2) + 1e-6).all()
    assert (found > -1e-6).all()


def test_equation_seven_is_twice_the_similarity_and_a_constant() -> None:
    p, q = (np.random.default_rng(n).dirichlet(np.ones(V)) for n in range(2))
    printed = -(p * np.log(p)).sum() - (q * np.log(q)).sum() + ((p + q) * np.log(p + q)).sum()

    found = divergences(torch.tensor(np.log([p, q]) - 15))  # where sigmoid is exp, z~ is the softmax

    assert printed == pytest.approx(-2 * found[0, 1].item() + 2 * math.log(2), abs=1e-5)


def contrast(given: Tensor, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> float:
    made = objective(settings)
    monkeypatch.setattr(made.decoder, "forward", lambda vectors: given)
    return made.compare((given,), None)["contrast"].item()


@pytest.mark.parametrize("anchors", ["first", "both"])
def test_an_anchors_contrast_is_bounded(anchors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m, settings = 4, dataclasses.replace(WORDS, anchors=anchors, contrast_reduction="mean", contrast_weight=1.0)

    def peaked(words: list[int]) -> Tensor:
        peaks = torch.full((2 * m, V), -40.0)
        peaks[range(2 * m), words] = 20.0
        return peaks

    best = contrast(peaked([5, 5, 6, 6, 7, 7, 8, 8]), settings, monkeypatch)
    equal = contrast(logits(1).expand(2 * m, -1), settings, monkeypatch)
    worst = contrast(peaked([5, 6, 5, 7, 5, 8, 5, 9]), dataclasses.replace(settings, anchors="first"), monkeypatch)
    anything = contrast(logits(2 * m), settings, monkeypatch)

    # Partners alike, others disjoint: 1 / (1 + (2m - 2) / 2) = 1 / m.
    assert best == pytest.approx(math.log(m), abs=1e-5)
    assert equal == pytest.approx(math.log(2 * m - 1), abs=1e-5)
    # Partners disjoint, all firsts alike: exp(-log 2) / ((m - 1) + m / 2).
    assert worst == pytest.approx(math.log(3 * m - 2), abs=1e-5)
    assert math.log(m) < anything < math.log(4 * m - 3)
    lonely = peaked([5, 6, 5, 5, 5, 5, 5, 5])  # the first text's first view is as all others, but not as its partner
    scores = cpdae.partner_losses(-divergences(lonely))
    assert scores.max().item() == pytest.approx(math.log(4 * m - 3), abs=1e-5)
    assert scores.min().item() > math.log(m)


# The objective


def test_the_decoder_starts_at_the_words_and_their_mean_chance() -> None:
    given = start(spread=0, terms=TERMS)
    made = Pretraining(given, WORDS)

    words = given.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(made.decoder.vocabulary.weight, words)
    assert made.decoder.vocabulary.weight.data_ptr() != words.data_ptr()
    chance = COUNTS.sum() / 50 / V
    torch.testing.assert_close(made.decoder.vocabulary.bias.sigmoid(), torch.full((V,), chance), rtol=1e-4, atol=1e-6)
    assert made.decoder.transform.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not made.decoder.transform.dense.bias.any()
    assert {name.partition(".")[0] for name, _ in made.named_parameters()} == {"model", "decoder"}


@pytest.mark.parametrize("settings", [WORDS, HIDDEN])
def test_reconstruction_and_contrast_reach_the_encoder_through_the_vector_alone(
    tokenizer: Tokenizer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, given = objective(settings), batch(tokenizer)
    hidden = made.model.bert(given.views.ids.flatten(0, 1), given.views.mask.flatten(0, 1)).detach().requires_grad_()
    passes: list[int] = []
    monkeypatch.setattr(made.model.bert, "forward", lambda ids, mask: passes.append(len(ids)) or hidden)

    losses = losses_of(made, given)
    of_mlm, of_words, of_contrast = (
        torch.autograd.grad(losses[name], hidden, retain_graph=True)[0]
        for name in ("mlm", "reconstruction", "contrast")
    )

    assert passes == [10]  # each view once
    for each in (of_words, of_contrast):
        assert (each[:, 0].abs().amax(1) > 1e-7).all()
        assert not each[:, 1:].any()
    assert torch.equal(of_mlm.abs().amax(-1) > 0, given.labels.flatten(0, 1) != IGNORED)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("settings", [WORDS, HIDDEN, ALONE])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_chunks_have_the_gradients_of_a_direct_pass(tokenizer: Tokenizer, settings: Settings, dropout: float) -> None:
    made, given = objective(settings, dropout=dropout).train(), batch(tokenizer)
    losses = loop.gradients(made, given, 2, (3, 5))
    found = [parameter.grad.clone() for parameter in made.parameters()]

    made.zero_grad()
    chunks = [given.rows(0, 2), given.rows(2, 4), given.rows(4, 5)]
    passed = []
    for number, chunk in enumerate(chunks):
        torch.manual_seed(loop.mix_seeds((3, 5, number)))
        passed.append(made.encode(chunk))
    direct = dict(
        made.compare(tuple(torch.cat(each) for each in zip(*(each for each, _ in passed), strict=True)), given)
    )
    for name in ("mlm", "reconstruction"):
        terms = [chunk.num_terms(name) for chunk in chunks]
        direct[name] = sum(local[name] * n for (_, local), n in zip(passed, terms, strict=True)) / sum(terms)
    sum(direct.values()).backward()

    whole = losses_of(made, given) if dropout == 0 else direct
    assert set(losses) == set(whole) == {"mlm", "reconstruction", *(["contrast"] if settings != ALONE else [])}
    for name, loss in whole.items():
        assert losses[name].item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    for parameter, grad in zip(made.parameters(), found, strict=True):
        torch.testing.assert_close(grad, parameter.grad, atol=1e-5 * max(1.0, grad.abs().max().item()), rtol=1e-4)


@pytest.mark.parametrize("settings", [WORDS, HIDDEN, dataclasses.replace(ALONE, weighting="idf")])
def test_one_batch_can_be_learned_by_heart(tokenizer: Tokenizer, settings: Settings) -> None:
    made = Pretraining(
        start(spread=0, terms=TERMS), dataclasses.replace(settings, reconstruction_reduction="per_positive")
    )
    given, optimiser = batch(tokenizer), torch.optim.AdamW(made.parameters(), lr=1e-2)
    found = []
    for _ in range(60):
        optimiser.zero_grad()
        losses = losses_of(made, given)
        sum(losses.values()).backward()
        optimiser.step()
        found.append({name: loss.item() for name, loss in losses.items()})

    assert found[-1]["mlm"] < 0.2 * found[0]["mlm"]
    assert found[-1]["reconstruction"] < 0.3 * found[0]["reconstruction"]
    if settings.contrast_weight is not None:
        floor = 0 if settings.contrast == "hidden" else 0.1 * 5 * math.log(5)  # m anchors of ln m at best
        assert floor < found[-1]["contrast"] < found[0]["contrast"]


def test_the_decoder_sums_in_float32_whatever_the_encoder_computes_in(tokenizer: Tokenizer) -> None:
    made, given = objective(), batch(tokenizer)
    vectors = torch.randn(10, SHAPE["hidden_size"])
    words = given.words.repeat_interleave(2, 0)
    expected = reconstruction_losses(made.decoder(vectors), words, made.weights)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = made.decoder(vectors)
        found = reconstruction_losses(decoded, words, made.weights)

    assert decoded.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"anchors": None}, "contrast words: expected values for contrast_weight"),
        ({"contrast": "hidden", "contrast_temperature": None}, "contrast hidden: expected values"),
        ({"contrast": "none"}, "contrast none: expected null for contrast_weight"),
        ({"contrast": "none", **NONE, "contrast_reduction": "sum"}, "contrast none: expected null"),
        ({"contrast_temperature": 0.0}, "above 0"),
        ({"contrast_weight": -0.1}, "above 0"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(WORDS, **change)


def test_what_a_start_must_have() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(terms=TERMS), dataclasses.replace(WORDS, max_tokens=65))
    with pytest.raises(ValueError, match="counted terms, found none"):
        Pretraining(start(), WORDS)
