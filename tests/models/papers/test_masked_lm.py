"""BERT's own pre-training: what is hidden, and the loss against loops written from its formula."""

import dataclasses

import numpy as np
import pytest
import torch

from models.masking import IGNORED, mask_budget, word_indices
from models.papers.masked_lm import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.tokens import Tokenizer
from tasks.training.grad_cache import gradients
from tests.slow import bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import PIECES, SHAPE, start

SETTINGS = Settings(mask_rate=0.3, whole_words=False, max_tokens=20)
SPECIALS = 5


def texts(count: int = 8, longest: int = 30, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(SPECIALS, len(PIECES), size=n).tolist() for n in random.integers(3, longest, size=count)]


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(RawBatch(texts(seed=seed)), tokenizer, settings, np.random.default_rng(seed))


@pytest.mark.parametrize("whole_words", [True, False])
def test_what_is_hidden(tokenizer: Tokenizer, whole_words: bool) -> None:
    settings, given = dataclasses.replace(SETTINGS, whole_words=whole_words), texts(100)

    made = make_batch(RawBatch(given), tokenizer, settings, np.random.default_rng(0))

    split_words = 0
    for ids, mask, labels, text in zip(made.text.ids, made.text.mask, made.text_labels, given, strict=True):
        hidden = (labels != IGNORED)[mask].numpy()
        original = torch.where(labels == IGNORED, ids, labels)[mask].numpy()
        assert len(original) == min(20, len(text) + 2)
        assert " ".join(map(str, original[1:-1])) in " ".join(map(str, text))
        assert (labels[~mask] == IGNORED).all()
        assert not hidden[0]
        assert not hidden[-1]
        wanted = mask_budget(len(original) - 2, 0.3)
        assert hidden.sum() <= wanted
        assert whole_words or hidden.sum() == wanted
        words = word_indices(original, tokenizer)
        split_words += sum(len(set(hidden[words == word])) > 1 for word in range(words.max() + 1))
    assert (split_words == 0) == whole_words


@torch.no_grad()
def test_the_loss_slowly(tokenizer: Tokenizer) -> None:
    made, given = Pretraining(start(), SETTINGS).eval(), batch(tokenizer)

    vectors, losses = made.encode(given)

    w, costs = numbers(made.model), []
    for ids, mask, labels in zip(given.text.ids, given.text.mask, given.text_labels, strict=True):
        scores = log_softmax(vocabulary(bert_layers(w, ids[mask].tolist())[-1], w))
        costs += [-scores[place, label] for place, label in enumerate(labels[mask].tolist()) if label != IGNORED]
    assert vectors == ()
    assert made.compare(vectors, given) == {}
    assert losses.keys() == {"mlm"}
    assert losses["mlm"].item() == pytest.approx(np.mean(costs), rel=1e-5)
    assert given.num_terms("mlm") == len(costs) == sum(given.rows(n, n + 1).num_terms("mlm") for n in range(8))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_neither_loss_nor_gradients(tokenizer: Tokenizer, chunk: int) -> None:
    given, found = batch(tokenizer), []
    for size in (None, chunk):
        made = Pretraining(start(), SETTINGS).train()
        loss = gradients(made, given, size, (1, 2))["mlm"].item()
        found.append((loss, [each.grad for each in made.parameters()]))

    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("store")
def test_a_batch_is_learned_by_heart_and_equal_seeds_learn_equally(tokenizer: Tokenizer) -> None:
    given, runs = batch(tokenizer), []
    for seed in (0, 0, 1):
        made = Pretraining(start(dropout=0.05, spread=0), SETTINGS).train()
        optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
        losses = []
        for step in range(80 if not runs else 3):
            losses.append(gradients(made, given, None, (seed, step))["mlm"].item())
            optimiser.step()
            optimiser.zero_grad()
        runs.append(losses)

    assert runs[0][0] > 3
    assert runs[0][-1] < 0.2 * runs[0][0]
    assert runs[0][:3] == runs[1] != runs[2]


def test_it_has_no_head_of_its_own() -> None:
    made = Pretraining(begun := start(), SETTINGS)

    assert {id(each) for each in made.parameters()} == {id(each) for each in begun.model.parameters()}


@pytest.mark.parametrize("change", [{"mask_rate": 0.0}, {"mask_rate": 1.1}, {"max_tokens": 2}])
def test_settings_that_mean_nothing(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(SETTINGS, **change)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(ValueError, match="max_tokens: expected at most 64, found 65"):
        Pretraining(start(), dataclasses.replace(SETTINGS, max_tokens=SHAPE["max_position_embeddings"] + 1))
