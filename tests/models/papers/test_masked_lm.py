"""BERT's own pre-training: what is hidden, and the loss against loops written from its formula."""

import dataclasses

import numpy as np
import pytest
import torch

from models.masking import IGNORED
from models.papers.masked_lm import Batch, Pretraining, Settings, make_batch
from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.texts import word_indices
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget, masked_crop
from tests.models.padded import padded
from tests.slow import bert_layers, log_softmax, numbers, vocabulary
from tests.tiny import random_texts, start

SETTINGS = Settings(mask_rate=0.3, whole_words=False, max_tokens=20)


def texts(count: int = 8, longest: int = 30, seed: int = 0) -> list[list[int]]:
    return random_texts(count, longest, np.random.default_rng(seed))


def batch(tokenizer: Tokenizer, settings: Settings = SETTINGS, seed: int = 0) -> Batch:
    return make_batch(RawBatch(texts(seed=seed)), tokenizer, settings, RowRandom(seed, 0))


def objective(settings: Settings = SETTINGS, *, dropout: float = 0.0) -> Pretraining:
    return Pretraining(start(dropout=dropout), settings)


@pytest.mark.parametrize("whole_words", [True, False])
def test_what_is_hidden(tokenizer: Tokenizer, whole_words: bool) -> None:
    settings, inputs = dataclasses.replace(SETTINGS, whole_words=whole_words), texts(100)

    batch = make_batch(RawBatch(inputs), tokenizer, settings, RowRandom(0, 0))

    split_words = 0
    for ids, mask, labels, text in zip(batch.tokens.ids, batch.tokens.mask, batch.labels, inputs, strict=True):
        original, hidden = masked_crop(ids, mask, labels, text)
        wanted = mask_budget(len(original) - 2, 0.3)
        assert hidden.sum() <= wanted
        assert whole_words or hidden.sum() == wanted
        words = word_indices(padded(original), tokenizer)[0]
        split_words += sum(len(set(hidden[words == word])) > 1 for word in range(words.max() + 1))
    assert (split_words == 0) == whole_words


@torch.no_grad()
def test_the_loss_slowly(tokenizer: Tokenizer) -> None:
    model, inputs = Pretraining(start(), SETTINGS).eval(), batch(tokenizer)

    vectors, losses = model.encode(inputs)

    w, costs = numbers(model.model), []
    for ids, mask, labels in zip(inputs.tokens.ids, inputs.tokens.mask, inputs.labels, strict=True):
        scores = log_softmax(vocabulary(bert_layers(w, ids[mask].tolist())[-1], w))
        costs += [-scores[row, label] for row, label in enumerate(labels[mask].tolist()) if label != IGNORED]
    assert vectors == ()
    assert model.compare(vectors, inputs) == {}
    assert losses.keys() == {"mlm"}
    assert losses["mlm"].item() == pytest.approx(np.mean(costs), rel=1e-5)
    assert inputs.num_terms("mlm") == len(costs) == sum(inputs.rows(n, n + 1).num_terms("mlm") for n in range(8))


def test_it_has_no_head_of_its_own() -> None:
    model = Pretraining(begun := start(), SETTINGS)

    assert {id(parameter) for parameter in model.parameters()} == {
        id(parameter) for parameter in begun.model.parameters()
    }
