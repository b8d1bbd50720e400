"""Whole-word masking against a slow walk over the words, and the rates at which tokens are replaced."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.masking import IGNORED, mask_budgets, mask_words, select_tokens, select_words
from models.row_random import RowRandom
from models.texts import word_indices
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget
from tests.models.padded import CLS, MASK, SEP, numbers, padded, slow_words
from tests.tiny import PIECES

texts = st.lists(st.integers(5, len(PIECES) - 1), max_size=60)


def random_order(words: list[int], random: RowRandom, row: int, num_rows: int, max_tokens: int) -> list[int]:
    """The words, by the positions at which they begin, sorted by the random numbers of these positions."""
    bits = random.bits(num_rows, max_tokens)[row].tolist()
    positions = [index + 1 for index, number in enumerate(words) if index == 0 or not PIECES[number].startswith("##")]
    return sorted(range(len(positions)), key=lambda word: bits[positions[word]])


@settings(deadline=None, max_examples=300)
@given(
    batch=st.lists(texts, min_size=1, max_size=5), rate=st.sampled_from([0.15, 0.3, 0.45, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1), specials_count=st.booleans(),
)  # fmt: skip
def test_the_same_words_as_a_slow_walk(
    tokenizer: Tokenizer, batch: list[list[int]], rate: float, seed: int, specials_count: bool
) -> None:
    rows = [[CLS, *text, SEP] for text in batch]

    selected = select_words(padded(*rows), tokenizer, rate, RowRandom(seed, 3), specials_count=specials_count)

    for row, (ids, text) in enumerate(zip(rows, batch, strict=True)):
        order = random_order(text, RowRandom(seed, 3), row, len(rows), 80)
        expected = slow_words(ids, rate, order, specials=2 if specials_count else 0)
        assert set(np.flatnonzero(selected[row]).tolist()) == expected


@settings(deadline=None, max_examples=200)
@given(
    batch=st.lists(texts, min_size=1, max_size=5), rate=st.sampled_from([0.15, 0.3, 0.45]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_words_are_masked_completely_and_never_more_than_the_budget(
    tokenizer: Tokenizer, batch: list[list[int]], rate: float, seed: int
) -> None:
    rows = [[CLS, *text, SEP] for text in batch]

    selected = select_words(padded(*rows), tokenizer, rate, RowRandom(seed, 0))

    for mask, ids in zip(selected, rows, strict=True):
        assert not mask[0]
        assert not mask[len(ids) - 1 :].any()
        assert mask.sum() <= mask_budget(len(ids) - 2, rate)
        for position in range(2, len(ids) - 1):
            if PIECES[ids[position]].startswith("##"):
                assert mask[position] == mask[position - 1]


def test_words_of_many_tokens_are_skipped_as_in_a_slow_walk(tokenizer: Tokenizer) -> None:
    """Words of 9, 8, ... 1 tokens and a budget that only the shorter fit, in a thousand orders."""
    text = [piece for length in range(9, 0, -1) for piece in numbers("river", *["##s"] * (length - 1))]
    ids = [CLS, *text, SEP]

    selected = select_words(padded(*[ids] * 1000), tokenizer, 0.3, RowRandom(1, 0))

    orders = [random_order(text, RowRandom(1, 0), row, 1000, 80) for row in range(1000)]
    masked = [set(np.flatnonzero(mask).tolist()) for mask in selected]
    assert masked == [slow_words(ids, 0.3, order) for order in orders]
    assert {len(chosen) for chosen in masked} >= {13, 14}  # most fill the budget, some cannot
    assert len(set(map(tuple, orders))) > 950
    firsts = np.bincount([order[0] for order in orders], minlength=9)
    assert ((firsts - 1000 / 9) ** 2 / (1000 / 9)).sum() < 8 + 5 * np.sqrt(16)  # any word may be the first


@pytest.mark.parametrize("select", [select_words, select_tokens, mask_words])
@pytest.mark.parametrize("first", [0, 1, 4])
def test_rows_of_a_batch_are_those_of_the_complete_batch(tokenizer: Tokenizer, select: Any, first: int) -> None:
    draws = np.random.default_rng(0)
    rows = [[CLS, *draws.integers(5, len(PIECES), size=size).tolist(), SEP] for size in (30, 1, 40, 0, 12, 7)]

    complete = np.atleast_3d(select(padded(*rows), tokenizer, 0.3, RowRandom(5, 2)))
    part = np.atleast_3d(select(padded(*rows[first : first + 2]), tokenizer, 0.3, RowRandom(5, 2, first)))

    if select is mask_words:
        complete, part = (np.moveaxis(ids, 0, -1) for ids in (complete, part))
    width = part.shape[1]
    assert (part == complete[first : first + 2, :width]).all()


@pytest.mark.parametrize(
    ("num_tokens", "rate", "expected"),
    [(15, 0.3, 4), (5, 0.3, 2), (5, 0.5, 2), (7, 0.5, 4), (1, 0.3, 1), (0, 0.3, 1), (142, 0.3, 43), (5000, 0.3, 512)],
)
def test_budget_rounds_halves_to_even(num_tokens: int, rate: float, expected: int) -> None:
    assert mask_budgets(np.array([num_tokens]), rate).tolist() == [expected]


def test_a_word_that_overshoots_is_skipped_so_nothing_may_be_masked(tokenizer: Tokenizer) -> None:
    ids = [CLS, *(PIECES.index(piece) for piece in ("king", "##s", "##er", "##ly")), SEP]

    assert not select_words(padded(ids), tokenizer, 0.3, RowRandom(0, 0)).any()


def test_labels_are_the_ids_where_masked(tokenizer: Tokenizer) -> None:
    rows = [np.array([CLS, *range(5, 5 + length), SEP]) for length in (0, 1, 20, 40)]

    masked, labels = mask_words(padded(*rows), tokenizer, 0.3, RowRandom(0, 0))

    for ids, row, label in zip(rows, masked, labels, strict=True):
        labelled = label != IGNORED
        assert (label[labelled] == ids[labelled[: len(ids)]]).all()
        assert (row[: len(ids)][~labelled[: len(ids)]] == ids[~labelled[: len(ids)]]).all()
        assert labelled.sum() == (0 if len(ids) == 2 else mask_budget(len(ids) - 2, 0.3))
        assert not labelled[0]
        assert not labelled[len(ids) - 1 :].any()
        assert not row[len(ids) :].any()


def rates(tokenizer: Tokenizer) -> tuple[float, float, float, float]:
    draws = np.random.default_rng(0)
    words = np.array([number for number in range(5, 60) if not PIECES[number].startswith("##")])
    texts = padded(*(np.array([CLS, *words[draws.integers(len(words), size=40)], SEP]) for _ in range(2000)))
    masked, labels = mask_words(texts, tokenizer, 0.3, RowRandom(0, 0))
    labelled = labels != IGNORED
    to_mask, kept = labelled & (masked == MASK), labelled & (masked == texts.ids)
    return (
        labelled.sum() / (2000 * 40), to_mask.sum() / labelled.sum(), kept.sum() / labelled.sum(), labelled.sum()
    )  # fmt: skip


def test_eighty_ten_ten(tokenizer: Tokenizer) -> None:
    share, to_mask, kept, count = rates(tokenizer)

    by_chance = 0.1 / len(PIECES)  # any token may be the one it was, or [MASK]
    assert share == 0.3
    assert abs(to_mask - 0.8 - by_chance) < 4 * np.sqrt(0.8 * 0.2 / count)
    assert abs(kept - 0.1 - by_chance) < 4 * np.sqrt(0.1 * 0.9 / count)


def test_random_replacements_are_uniform_over_the_vocabulary(tokenizer: Tokenizer) -> None:
    row = np.array([CLS, *[PIECES.index("river")] * 50, SEP])
    masked, _ = mask_words(padded(*[row] * 2000), tokenizer, 1.0, RowRandom(0, 0))
    replaced = masked[:, 1:-1].ravel()
    counts = np.bincount(replaced, minlength=len(PIECES))
    counts = np.delete(counts, [MASK, PIECES.index("river")])

    expected = len(replaced) * 0.1 / len(PIECES)
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_equal_seeds_mask_equally(tokenizer: Tokenizer) -> None:
    rows = padded([CLS, *range(5, 40), SEP])
    first, second, other = (mask_words(rows, tokenizer, 0.3, RowRandom(seed, 0)) for seed in (1, 1, 2))

    assert (first[0] == second[0]).all()
    assert (first[1] != other[1]).any()


# Parts, and other masks


def test_whole_words_count_specials_on_request(tokenizer: Tokenizer) -> None:
    texts = padded([CLS, *numbers("river", "king", "stone", "bread", "tree", "music"), SEP])
    selected = [
        select_words(texts, tokenizer, 0.5, RowRandom(0, 0), specials_count=specials_count).sum()
        for specials_count in (False, True)
    ]

    assert selected == [3, 4]
    for specials_count, expected in zip((False, True), selected, strict=True):
        _, labels = mask_words(texts, tokenizer, 0.5, RowRandom(0, 0), specials_count=specials_count)
        assert (labels != IGNORED).sum() == expected


def test_word_indices_by_hand(tokenizer: Tokenizer) -> None:
    def words(*pieces: str) -> list[int]:
        return list(word_indices(padded([CLS, *numbers(*pieces), SEP]), tokenizer)[0])

    assert words("river", "##s", "##er", "king", "##s") == [-1, 0, 0, 0, 1, 1, -1]
    assert words("##s", "##er", "king", "[UNK]", "##ly") == [-1, 0, 0, 1, 2, 2, -1]  # a crop may begin within a word
    assert words() == [-1, -1]
    assert word_indices(padded([CLS, SEP], [CLS, 7, SEP]), tokenizer).tolist() == [[-1, -1, -1], [-1, 0, -1]]


@settings(deadline=None, max_examples=200)
@given(text=texts, rate=st.sampled_from([0.15, 0.3, 1.0]), seed=st.integers(0, 2**32 - 1))
def test_single_tokens_use_the_whole_budget(tokenizer: Tokenizer, text: list[int], rate: float, seed: int) -> None:
    (selected,) = select_tokens(padded([CLS, *text, SEP]), tokenizer, rate, RowRandom(seed, 0))

    assert not selected[[0, -1]].any()
    assert selected.sum() == (mask_budget(len(text), rate) if text else 0)


def test_single_tokens_are_equally_likely_whatever_their_words_but_never_special_ones(tokenizer: Tokenizer) -> None:
    ids = [CLS, *numbers("river", "##s", "[UNK]", "king", "##s", "##er"), SEP]
    selected = select_tokens(padded(*[ids] * 3000), tokenizer, 0.34, RowRandom(0, 0))

    assert (selected.sum(1) == 2).all()
    assert not selected[:, [0, 3, 7]].any()
    np.testing.assert_allclose(selected[:, [1, 2, 4, 5, 6]].mean(0), 2 / 5, atol=0.04)
    assert np.corrcoef(selected[:, 1], selected[:, 2])[0, 1] < -0.1  # without replacement, not word by word
