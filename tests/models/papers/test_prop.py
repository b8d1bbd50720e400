"""PROP: how word sets are drawn and ranked, and its losses against loops written from the formulas."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from models.masking import IGNORED
from models.objective import Losses
from models.papers.prop import (
    Batch,
    LanguageModel,
    OwnWords,
    Pretraining,
    Settings,
    make_batch,
    ranking_loss,
    set_lengths,
)
from models.pretraining import RawBatch, TermCounts
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.models.padded import padded
from tests.slow import bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import PIECES, start

V = len(PIECES)
CLS, SEP, UNK, PAD, MASK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"))
COUNTS = np.random.default_rng(3).integers(0, 400, size=V)
COUNTS[UNK], COUNTS[30] = 900, 0
TERMS = TermCounts(num_texts=50, document_frequency=COUNTS // 2, collection_frequency=COUNTS)
SETTINGS = Settings(
    mean_words=3.0, pairs=4, margin=1.0, mask_rate=0.15, smoothing=12.0, max_tokens=20, words_max_tokens=8
)
TEXT = np.array([5, 6, 6, 7, 7, 7, 40])


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    texts = [random.integers(5, V, size=n).tolist() for n in (30, 9, 18, 4, 25)]
    texts[1][3] = UNK
    return make_batch(RawBatch(texts, terms=TERMS), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings = SETTINGS, *, dropout: float = 0.0, pooling: str = "cls") -> Pretraining:
    return Pretraining(start(dropout=dropout, pooling=pooling, spread=0.05), settings)


def chance(text: list[int], word: int, smoothing: float) -> float:
    """P(w|d), from the formula; special tokens are no words."""
    total = sum(count for number, count in enumerate(COUNTS) if number > 4)
    in_collection = COUNTS[word] / total if word > 4 else 0.0
    return (text.count(word) + smoothing * in_collection) / (len(text) + smoothing)


# Word sets


def own_words(tokenizer: Tokenizer, *texts: Any) -> OwnWords:
    return OwnWords(padded(*([CLS, *text, SEP] for text in texts)), tokenizer)


@pytest.mark.parametrize("smoothing", [0.01, 7.0, 1000.0])
def test_words_are_drawn_from_the_smoothed_language_model(tokenizer: Tokenizer, smoothing: float) -> None:
    model, own = LanguageModel(TERMS, tokenizer, smoothing), own_words(tokenizer, [40, 41], TEXT)

    sampled = model.sample(own, RowRandom(0, 0).bits(2, 200_000))[1]
    results = np.bincount(sampled, minlength=V) / 200_000

    expected = np.array([chance(TEXT.tolist(), word, smoothing) for word in range(V)])
    assert expected.sum() == pytest.approx(1)
    np.testing.assert_array_less(np.abs(results - expected), 5 * np.sqrt(expected / 200_000) + 1e-12)
    assert not results[[PAD, UNK, CLS, SEP, MASK, 30]].any()
    words = np.arange(5, V)
    with np.errstate(divide="ignore"):  # piece 30 occurs nowhere
        np.testing.assert_allclose(
            np.exp(model.log_probabilities(own, np.ones_like(words), words)), expected[words], rtol=1e-12
        )


def test_an_empty_text_draws_from_the_collection(tokenizer: Tokenizer) -> None:
    model = LanguageModel(TERMS, tokenizer, 5.0)

    for rows in ([[]], [[], TEXT.tolist()], [TEXT.tolist(), []]):
        own, row = own_words(tokenizer, *rows), rows.index([])
        words = model.sample(own, RowRandom(0, 0).bits(len(rows), 1000))[row]
        assert (COUNTS[words] > 0).all()
        logs = model.log_probabilities(own, np.full_like(words, row), words)
        np.testing.assert_allclose(np.exp(logs), [chance([], w, 5.0) for w in words])


def test_lengths_are_poissons_without_zero() -> None:
    lengths = set_lengths(3.0, np.random.default_rng(0).random(200_000), 5)

    mass = [math.exp(-3) * 3**n / math.factorial(n) / (1 - math.exp(-3)) for n in range(1, 5)]
    expected = np.array([0, *mass, 1 - sum(mass)])  # what is longer is cut to 5
    np.testing.assert_allclose(np.bincount(lengths) / 200_000, expected, atol=0.005)
    assert set(set_lengths(1e-9, np.random.default_rng(0).random(100), 5)) == {1}


def test_a_pair_is_equally_long_and_the_likelier_set_stands_first(tokenizer: Tokenizer) -> None:
    inputs = batch(tokenizer, dataclasses.replace(SETTINGS, pairs=50))

    whole = torch.where(inputs.text_labels != IGNORED, inputs.text_labels, inputs.text.ids)
    lengths, ties = set(), 0
    for row in range(5):
        text = [word for word in whole[row][inputs.text.mask[row]].tolist() if word > 4]
        sets = [ids[mask].tolist() for ids, mask in zip(inputs.sets.ids[row], inputs.sets.mask[row], strict=True)]
        assert len(sets) == 100
        for pair in range(50):
            first, second = sets[2 * pair], sets[2 * pair + 1]
            assert len(first) == len(second)
            assert [(part[0], part[-1]) for part in (first, second)] == [(CLS, SEP)] * 2
            assert min(first[1:-1] + second[1:-1]) > 4
            chances = [sum(math.log(chance(text, word, 12.0)) for word in part[1:-1]) for part in (first, second)]
            lengths.add(len(first) - 2)
            if inputs.ranked[row, pair]:
                assert chances[0] > chances[1]
            else:
                ties += 1
                assert chances[0] == pytest.approx(chances[1])
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert ties


def test_equal_sets_are_no_pair_in_whatever_order(tokenizer: Tokenizer) -> None:
    counts = np.zeros(V, dtype=np.int64)
    counts[[50, 51]] = 1, 3
    terms = TermCounts(num_texts=1, document_frequency=counts, collection_frequency=counts)
    model = LanguageModel(terms, tokenizer, 2.0)

    for seed in range(200):
        sets = np.random.default_rng(seed).integers(50, 52, size=(1, 1, 2, 7))
        words, ranked = model.ranked_pairs(own_words(tokenizer, [50, 51, 51]), sets, np.array([[5]]))
        common = (words[0, 0, :, :5] == 51).sum(1)
        assert ranked[0, 0] == (common[0] != common[1])
        assert common[0] >= common[1]


def test_texts_are_masked_token_by_token_and_sets_are_not(tokenizer: Tokenizer) -> None:
    inputs = batch(tokenizer)

    assert (inputs.text_labels != IGNORED).sum(1).tolist() == [3, 1, 3, 1, 3]
    assert not (inputs.sets.ids == MASK).any()
    assert inputs.sets.ids.shape == inputs.sets.mask.shape == (5, 8, inputs.sets.ids.shape[2])
    assert inputs.sets.ids.shape[2] <= 8
    for name in ("mlm", "ranking"):
        assert inputs.num_terms(name) == sum(inputs.rows(n, n + 1).num_terms(name) for n in range(5))
    assert inputs.num_terms("ranking") == int(inputs.ranked.sum())
    part = inputs.rows(1, 3)
    assert torch.equal(part.sets.ids, inputs.sets.ids[1:3])
    assert torch.equal(part.ranked, inputs.ranked[1:3])


def test_equal_seeds_draw_equally(tokenizer: Tokenizer) -> None:
    one, same, other = (batch(tokenizer, seed=n) for n in (0, 0, 1))

    assert torch.equal(one.sets.ids, same.sets.ids)
    assert objective().encode(one)[1] == objective().encode(same)[1]
    assert one.sets.ids.tolist() != other.sets.ids.tolist()


# Losses


def slow_losses(model: Pretraining, inputs: Batch, margin: float) -> dict[str, float]:
    """Texts, pairs and tokens one by one."""
    w, mlm, ranking = numbers(model.model), [], []

    def vector(ids: list[int]) -> np.ndarray:
        last = bert_layers(w, ids)[-1]
        return last[0] if model.pooling == "cls" else last.mean(0)

    for row in range(len(inputs)):
        mask = inputs.text.mask[row]
        ids, labels = inputs.text.ids[row][mask].tolist(), inputs.text_labels[row][mask].tolist()
        logs = log_softmax(vocabulary(bert_layers(w, ids)[-1], w))
        mlm += [-logs[position, label] for position, label in enumerate(labels) if label != IGNORED]
        for pair in range(inputs.ranked.shape[1]):
            if inputs.ranked[row, pair]:
                likelier, other = (
                    vector(ids) @ vector(inputs.sets.ids[row, n][inputs.sets.mask[row, n]].tolist())
                    for n in (2 * pair, 2 * pair + 1)
                )
                p = 1 / (1 + math.exp(other - likelier))
                ranking.append(max(0.0, margin - p + (1 - p)))
    return {"mlm": float(np.mean(mlm)), "ranking": float(np.mean(ranking))}


@pytest.mark.parametrize(("margin", "pooling"), [(1.0, "cls"), (0.3, "cls"), (1.0, "mean")])
def test_losses_by_the_formulas(tokenizer: Tokenizer, margin: float, pooling: str) -> None:
    model = objective(dataclasses.replace(SETTINGS, margin=margin), pooling=pooling).eval()
    inputs = batch(tokenizer)
    inputs.ranked[1, 2] = inputs.ranked[3, 0] = False

    vectors, losses = model.encode(inputs)

    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    expected = slow_losses(model, inputs, margin)
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_hinge_by_hand() -> None:
    scores = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)], [0.0, 0.0]], requires_grad=True)

    # Of each pair the first has 3/4, 1/4 and 1/2 of the mass.
    assert ranking_loss(scores, 1.0).item() == pytest.approx((0.5 + 1.5 + 1.0) / 3)
    assert ranking_loss(scores, 0.25).item() == pytest.approx((0.0 + 0.75 + 0.25) / 3)
    assert ranking_loss(scores[:0], 1.0).item() == 0
    ranking_loss(scores, 0.25).backward()
    assert scores.grad is not None
    assert not scores.grad[0].any()
    assert scores.grad[1, 0] < 0 < scores.grad[1, 1]


def test_unranked_pairs_and_other_texts_sets_have_no_gradient(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = objective(), batch(tokenizer)
    inputs = dataclasses.replace(inputs, ranked=torch.arange(20).reshape(5, 4) % 3 == 0)
    hidden = model.model.bert(inputs.text.ids, inputs.text.mask).detach().requires_grad_()
    of_sets = model.model.bert(inputs.sets.ids.flatten(0, 1), inputs.sets.mask.flatten(0, 1)).detach().requires_grad_()
    monkeypatch.setattr(model.model.bert, "forward", lambda ids, mask, **known: hidden if len(ids) == 5 else of_sets)

    losses = model.encode(inputs)[1]
    to_text, to_sets = torch.autograd.grad(losses["ranking"], (hidden, of_sets), retain_graph=True)
    (of_mlm,) = torch.autograd.grad(losses["mlm"], hidden)

    assert not to_text[:, 1:].any()
    assert not to_sets[:, 1:].any()
    reached = to_sets[:, 0].abs().amax(1).reshape(5, 4, 2) > 0
    assert torch.equal(reached, inputs.ranked[..., None].expand(-1, -1, 2))
    for row in range(5):  # a set's gradient points along its own text
        for gradient in to_sets[8 * row : 8 * row + 8, 0]:
            if gradient.any():
                assert abs(torch.cosine_similarity(gradient, hidden[row, 0], dim=0).item()) == pytest.approx(
                    1, abs=1e-5
                )
    assert torch.equal(of_mlm.abs().amax(-1) > 0, inputs.text_labels != IGNORED)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_chunks_change_neither_losses_nor_gradients(tokenizer: Tokenizer, chunk: int) -> None:
    model, inputs = objective().train(), batch(tokenizer)
    inputs.ranked[0] = inputs.ranked[2, :3] = False  # a chunk may have no pair at all

    def both(chunk: int | None) -> tuple[Losses, list[torch.Tensor]]:
        model.zero_grad()
        losses = gradients(model, inputs, chunk, (3, 5))
        return losses, [parameter.grad.clone() for parameter in model.parameters()]

    (losses, grads), (of_chunks, grads_of_chunks) = both(None), both(chunk)

    torch.testing.assert_close(of_chunks, losses, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(grads_of_chunks, grads, atol=1e-5, rtol=1e-4)
