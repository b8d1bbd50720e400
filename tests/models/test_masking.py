"""Whole-word masking against a slow walk over the words, and the rates at which tokens are replaced."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from models.masking import IGNORED, mask_budget, mask_words, sample_masks, select_tokens, select_words, word_indices
from models.tokens import Tokenizer, pad
from tests.tiny import PIECES

CLS, SEP, MASK, UNK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]", "[UNK]"))
texts = st.lists(st.integers(5, len(PIECES) - 1), max_size=60)


def slow_words(ids: list[int], rate: float, order: list[int], *, specials: int = 0) -> set[int]:
    """Which positions are hidden when words are taken in an order: Condenser's collator, step by step.

    So many of the two special tokens count for the budget.
    """
    words: list[list[int]] = []
    for position, number in enumerate(ids):
        if number in (CLS, SEP):
            continue
        if words and PIECES[number].startswith("##"):
            words[-1].append(position)
        else:
            words.append([position])
    hidden: list[int] = []
    wanted = max(1, min(512, round((len(ids) - 2 + specials) * rate)))
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

    hidden, with_specials = (
        select_words(np.array(ids), tokenizer, rate, np.random.default_rng(seed), specials_count=specials_count)
        for specials_count in (False, True)
    )

    assert set(np.flatnonzero(hidden).tolist()) == slow_words(ids, rate, order)
    assert set(np.flatnonzero(with_specials).tolist()) == slow_words(ids, rate, order, specials=2)


@settings(deadline=None, max_examples=200)
@given(text=texts, rate=st.sampled_from([0.15, 0.3, 0.45]), seed=st.integers(0, 2**32))
def test_words_are_hidden_whole_and_never_more_than_the_budget(
    tokenizer: Tokenizer, text: list[int], rate: float, seed: int
) -> None:
    ids = [CLS, *text, SEP]

    hidden = select_words(np.array(ids), tokenizer, rate, np.random.default_rng(seed))

    assert not hidden[0]
    assert not hidden[-1]
    assert hidden.sum() <= mask_budget(len(text), rate)
    for place in range(2, len(ids) - 1):
        if PIECES[ids[place]].startswith("##"):
            assert hidden[place] == hidden[place - 1]


@pytest.mark.parametrize(
    ("num_tokens", "rate", "expected"),
    [(15, 0.3, 4), (5, 0.3, 2), (5, 0.5, 2), (7, 0.5, 4), (1, 0.3, 1), (0, 0.3, 1), (142, 0.3, 43), (5000, 0.3, 512)],
)
def test_budget_rounds_halves_to_even(num_tokens: int, rate: float, expected: int) -> None:
    assert mask_budget(num_tokens, rate) == expected


def test_a_word_that_overshoots_is_skipped_so_nothing_may_be_hidden(tokenizer: Tokenizer) -> None:
    ids = [CLS, *(PIECES.index(piece) for piece in ("king", "##s", "##er", "##ly")), SEP]

    assert not select_words(np.array(ids), tokenizer, 0.3, np.random.default_rng(0)).any()


def test_labels_are_the_ids_where_hidden(tokenizer: Tokenizer) -> None:
    rows = [np.array([CLS, *range(5, 5 + length), SEP]) for length in (0, 1, 20, 40)]

    masked, labels = mask_words(rows, tokenizer, 0.3, np.random.default_rng(0))

    for ids, row, label in zip(rows, masked, labels, strict=True):
        asked = label != IGNORED
        assert (label[asked] == ids[asked]).all()
        assert (row[~asked] == ids[~asked]).all()
        assert asked.sum() == (0 if len(ids) == 2 else mask_budget(len(ids) - 2, 0.3))
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
    results = np.concatenate([each[1:-1] for each in masked])
    counts = np.bincount(results, minlength=len(PIECES))
    counts = np.delete(counts, [MASK, PIECES.index("river")])

    expected = len(results) * 0.1 / len(PIECES)
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_equal_generators_mask_alike(tokenizer: Tokenizer) -> None:
    rows = [np.array([CLS, *range(5, 40), SEP])]
    first, second, other = (mask_words(rows, tokenizer, 0.3, np.random.default_rng(seed)) for seed in (1, 1, 2))

    assert (first[0][0] == second[0][0]).all()
    assert (first[1][0] != other[1][0]).any()


# Parts, and other masks


def numbers(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def test_whole_words_counts_specials_where_told(tokenizer: Tokenizer) -> None:
    ids, random = np.array([CLS, *numbers("river", "king", "stone", "bread", "tree", "music"), SEP]), np.random
    hidden = [
        select_words(ids, tokenizer, 0.5, random.default_rng(0), specials_count=specials_count).sum()
        for specials_count in (False, True)
    ]

    assert hidden == [3, 4]
    for specials_count, expected in zip((False, True), hidden, strict=True):
        _, (labels,) = mask_words([ids], tokenizer, 0.5, random.default_rng(0), specials_count=specials_count)
        assert (labels != IGNORED).sum() == expected


def test_word_numbers_by_hand(tokenizer: Tokenizer) -> None:
    def words(*pieces: str) -> list[int]:
        return list(word_indices(np.array([CLS, *numbers(*pieces), SEP]), tokenizer))

    assert words("river", "##s", "##er", "king", "##s") == [-1, 0, 0, 0, 1, 1, -1]
    assert words("##s", "##er", "king", "[UNK]", "##ly") == [-1, 0, 0, 1, 2, 2, -1]  # a crop may begin within a word
    assert words() == [-1, -1]


@settings(deadline=None, max_examples=200)
@given(text=texts, rate=st.sampled_from([0.15, 0.3, 1.0]), seed=st.integers(0, 2**32))
def test_single_tokens_use_the_whole_budget(tokenizer: Tokenizer, text: list[int], rate: float, seed: int) -> None:
    hidden = select_tokens(np.array([CLS, *text, SEP]), tokenizer, rate, np.random.default_rng(seed))

    assert not hidden[[0, -1]].any()
    assert hidden.sum() == (mask_budget(len(text), rate) if text else 0)


def test_single_tokens_are_drawn_alike_whatever_their_words_but_never_special_ones(tokenizer: Tokenizer) -> None:
    ids, random = (
        np.array([CLS, *numbers("river", "##s", "[UNK]", "king", "##s", "##er"), SEP]),
        np.random.default_rng(0),
    )
    hidden = np.array([select_tokens(ids, tokenizer, 0.34, random) for _ in range(3000)])

    assert (hidden.sum(1) == 2).all()
    assert not hidden[:, [0, 3, 7]].any()
    np.testing.assert_allclose(hidden[:, [1, 2, 4, 5, 6]].mean(0), 2 / 5, atol=0.04)
    assert np.corrcoef(hidden[:, 1], hidden[:, 2])[0, 1] < -0.1  # as without replacement, not word by word


# Many masks at once


def masks_of(
    tokenizer: Tokenizer, rows: list[list[int]], rate: float, num_masks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks [B, R, L] of rows with [CLS] and [SEP], which count for the budget, and the words' numbers."""
    words = pad([word_indices(np.array(ids), tokenizer) for ids in rows], -1).ids
    return sample_masks(words, torch.tensor([mask_budget(len(ids), rate) for ids in rows]), num_masks), words


@settings(deadline=None, max_examples=150)
@given(
    batch=st.lists(texts, min_size=1, max_size=5), rate=st.sampled_from([0.15, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 2**32), num_masks=st.integers(1, 6),
)  # fmt: skip
def test_many_masks_hide_the_same_words_as_slow_walks(
    tokenizer: Tokenizer, batch: list[list[int]], rate: float, seed: int, num_masks: int
) -> None:
    rows = [[CLS, *text, SEP] for text in batch]
    most = max(map(num_of_words, batch))
    torch.manual_seed(seed)
    orders = torch.rand(len(rows), num_masks, most).argsort(-1).tolist() if most else [[[]] * num_masks] * len(rows)
    torch.manual_seed(seed)

    hidden, _ = masks_of(tokenizer, rows, rate, num_masks)

    assert hidden.shape == (len(rows), num_masks, max(map(len, rows)))
    for ids, text, masks, ordered in zip(rows, batch, hidden.numpy(), orders, strict=True):
        for mask, order in zip(masks, ordered, strict=True):
            own = [word for word in order if word < num_of_words(text)]
            assert set(np.flatnonzero(mask).tolist()) == slow_words(ids, rate, own, specials=2)


def test_many_masks_pass_over_long_words_again_and_again(tokenizer: Tokenizer) -> None:
    """Words of 9, 8, ... 1 pieces and a budget that only the shorter fit: each order's walk, not a shorter one."""
    ids = [CLS, *(piece for length in range(9, 0, -1) for piece in numbers("river", *["##s"] * (length - 1))), SEP]
    torch.manual_seed(0)
    orders = torch.rand(1, 500, 9).argsort(-1)[0].tolist()
    torch.manual_seed(0)

    hidden, _ = masks_of(tokenizer, [ids], 0.3, 500)

    expected = [slow_words(ids, 0.3, order, specials=2) for order in orders]
    assert [set(np.flatnonzero(mask).tolist()) for mask in hidden[0].numpy()] == expected
    assert {len(each) for each in expected} > {13, 14}  # most fill the budget, some cannot


def test_many_masks_are_drawn_apart_and_as_often_as_one_by_one(tokenizer: Tokenizer) -> None:
    rows = [
        [CLS, *numbers("river", "##s", "##er", "king", "stone", "##s", "tree", "music", "bread"), SEP],
        [CLS, *numbers("king", "##s", "garden", "winter"), SEP],
    ]
    torch.manual_seed(0)
    hidden, words = masks_of(tokenizer, rows, 0.5, 4000)
    random = np.random.default_rng(0)

    assert not hidden[:, :, 0].any()
    assert not hidden.transpose(1, 2)[words < 0].any()
    assert len({tuple(mask) for mask in hidden[0, :50].int().tolist()}) > 5
    for ids, masks in zip(rows, hidden.numpy(), strict=True):
        one_by_one = np.mean(
            [select_words(np.array(ids), tokenizer, 0.5, random, specials_count=True) for _ in range(4000)], axis=0
        )
        np.testing.assert_allclose(masks[:, : len(ids)].mean(0), one_by_one, atol=0.05)
        together = np.corrcoef(masks[1:, 1], masks[:-1, 1])[0, 1]
        assert abs(together) < 0.07


def test_many_masks_of_texts_without_words(tokenizer: Tokenizer) -> None:
    hidden, _ = masks_of(tokenizer, [[CLS, SEP], [CLS, SEP]], 0.5, 3)

    assert hidden.shape == (2, 3, 2)
    assert not hidden.any()
