"""Whole-word masking against a slow walk over the words, and the rates at which tokens are replaced."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from models.masking import IGNORED, budget, mask_words, whole_words
from models.tokens import Tokenizer
from tests.tiny import PIECES

CLS, SEP, MASK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]"))
texts = st.lists(st.integers(5, len(PIECES) - 1), max_size=60)


def slow_words(ids: list[int], rate: float, order: list[int]) -> set[int]:
    """Which positions are hidden when words are taken in an order: Condenser's collator, step by step."""
    words: list[list[int]] = []
    for position, number in enumerate(ids):
        if number in (CLS, SEP):
            continue
        if words and PIECES[number].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    wanted, hidden = max(1, min(512, round((len(ids) - 2) * rate))), []
    for word in (words[place] for place in order):
        if len(hidden) >= wanted:
            break
        if len(hidden) + len(word) > wanted:
            continue
        hidden += word
    return set(hidden)


def num_of_words(ids: list[int]) -> int:
    return sum(place == 0 or not PIECES[number].startswith("##") for place, number in enumerate(ids))


@settings(deadline=None, max_examples=300)
@given(text=texts, rate=st.sampled_from([0.15, 0.3, 0.45, 0.5, 1.0]), seed=st.integers(0, 2**32))
def test_the_same_words_as_a_slow_walk(tokenizer: Tokenizer, text: list[int], rate: float, seed: int) -> None:
    ids = [CLS, *text, SEP]
    order = np.random.default_rng(seed).permutation(num_of_words(text)).tolist()

    hidden = whole_words(np.array(ids), tokenizer, rate, np.random.default_rng(seed))

    assert set(np.flatnonzero(hidden).tolist()) == slow_words(ids, rate, order)


@settings(deadline=None, max_examples=200)
@given(text=texts, rate=st.sampled_from([0.15, 0.3, 0.45]), seed=st.integers(0, 2**32))
def test_words_are_hidden_whole_and_never_more_than_the_budget(
    tokenizer: Tokenizer, text: list[int], rate: float, seed: int
) -> None:
    ids = [CLS, *text, SEP]

    hidden = whole_words(np.array(ids), tokenizer, rate, np.random.default_rng(seed))

    assert not hidden[0]
    assert not hidden[-1]
    assert hidden.sum() <= budget(len(text), rate)
    for place in range(2, len(ids) - 1):
        if PIECES[ids[place]].startswith("##"):
            assert hidden[place] == hidden[place - 1]


@pytest.mark.parametrize(
    ("num_tokens", "rate", "expected"),
    [(15, 0.3, 4), (5, 0.3, 2), (5, 0.5, 2), (7, 0.5, 4), (1, 0.3, 1), (0, 0.3, 1), (142, 0.3, 43), (5000, 0.3, 512)],
)
def test_budget_rounds_halves_to_even(num_tokens: int, rate: float, expected: int) -> None:
    assert budget(num_tokens, rate) == expected


def test_a_word_that_overshoots_is_skipped_so_nothing_may_be_hidden(tokenizer: Tokenizer) -> None:
    ids = [CLS, *(PIECES.index(piece) for piece in ("king", "##s", "##er", "##ly")), SEP]

    assert not whole_words(np.array(ids), tokenizer, 0.3, np.random.default_rng(0)).any()


def test_labels_are_the_ids_where_hidden(tokenizer: Tokenizer) -> None:
    rows = [np.array([CLS, *range(5, 5 + length), SEP]) for length in (0, 1, 20, 40)]

    masked, labels = mask_words(rows, tokenizer, 0.3, np.random.default_rng(0))

    for ids, row, label in zip(rows, masked, labels, strict=True):
        asked = label != IGNORED
        assert (label[asked] == ids[asked]).all()
        assert (row[~asked] == ids[~asked]).all()
        assert asked.sum() == (0 if len(ids) == 2 else budget(len(ids) - 2, 0.3))
        assert not asked[[0, -1]].any()


def rates(tokenizer: Tokenizer, random: Generator) -> tuple[float, float, float, float]:
    words = np.array([number for number in range(5, 60) if not PIECES[number].startswith("##")])
    rows = [np.array([CLS, *words[random.integers(len(words), size=40)], SEP]) for _ in range(2000)]
    masked, labels = (np.concatenate(part) for part in mask_words(rows, tokenizer, 0.3, random))
    asked, ids = labels != IGNORED, np.concatenate(rows)
    to_mask, kept = asked & (masked == MASK), asked & (masked == ids)
    return asked.sum() / (2000 * 40), to_mask.sum() / asked.sum(), kept.sum() / asked.sum(), asked.sum()


def test_eighty_ten_ten(tokenizer: Tokenizer) -> None:
    share, to_mask, kept, count = rates(tokenizer, np.random.default_rng(0))

    by_chance = 0.1 / len(PIECES)  # any piece may be the one it was, or [MASK]
    assert share == 0.3
    assert abs(to_mask - 0.8 - by_chance) < 4 * np.sqrt(0.8 * 0.2 / count)
    assert abs(kept - 0.1 - by_chance) < 4 * np.sqrt(0.1 * 0.9 / count)


def test_replacements_are_any_piece_alike(tokenizer: Tokenizer) -> None:
    row, random = np.array([CLS, *[PIECES.index("river")] * 50, SEP]), np.random.default_rng(0)
    masked, _ = mask_words([row] * 2000, tokenizer, 1.0, random)
    found = np.concatenate([each[1:-1] for each in masked])
    counts = np.bincount(found, minlength=len(PIECES))
    counts = np.delete(counts, [MASK, PIECES.index("river")])

    expected = len(found) * 0.1 / len(PIECES)
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_equal_generators_mask_alike(tokenizer: Tokenizer) -> None:
    rows = [np.array([CLS, *range(5, 40), SEP])]
    first, second, other = (mask_words(rows, tokenizer, 0.3, np.random.default_rng(seed)) for seed in (1, 1, 2))

    assert (first[0][0] == second[0][0]).all()
    assert (first[1][0] != other[1][0]).any()
