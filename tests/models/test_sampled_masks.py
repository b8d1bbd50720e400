"""Many whole-word masks of a text at once, as RetroMAE's decoder samples them, against slow walks over the words."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.masking import sample_masks, select_words
from models.row_random import RowRandom
from models.texts import word_indices
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget
from tests.models.padded import CLS, SEP, num_of_words, numbers, padded, slow_words
from tests.models.test_masking import texts


def masks_of(
    tokenizer: Tokenizer, rows: list[list[int]], rate: float, num_masks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks [B, R, L] of rows with [CLS] and [SEP], which count for the budget, and the words' numbers."""
    words = torch.from_numpy(word_indices(padded(*rows), tokenizer))
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
    assert {len(positions) for positions in expected} > {13, 14}  # most fill the budget, some cannot


def test_many_masks_are_drawn_apart_and_as_often_as_one_by_one(tokenizer: Tokenizer) -> None:
    rows = [
        [CLS, *numbers("river", "##s", "##er", "king", "stone", "##s", "tree", "music", "bread"), SEP],
        [CLS, *numbers("king", "##s", "garden", "winter"), SEP],
    ]
    torch.manual_seed(0)
    hidden, words = masks_of(tokenizer, rows, 0.5, 4000)

    assert not hidden[:, :, 0].any()
    assert not hidden.transpose(1, 2)[words < 0].any()
    assert len({tuple(mask) for mask in hidden[0, :50].int().tolist()}) > 5
    for ids, masks in zip(rows, hidden.numpy(), strict=True):
        one_by_one = select_words(padded(*[ids] * 4000), tokenizer, 0.5, RowRandom(0, 0), specials_count=True).mean(0)
        np.testing.assert_allclose(masks[:, : len(ids)].mean(0), one_by_one, atol=0.05)
        together = np.corrcoef(masks[1:, 1], masks[:-1, 1])[0, 1]
        assert abs(together) < 0.07


def test_many_masks_of_texts_without_words(tokenizer: Tokenizer) -> None:
    hidden, _ = masks_of(tokenizer, [[CLS, SEP], [CLS, SEP]], 0.5, 3)

    assert hidden.shape == (2, 3, 2)
    assert not hidden.any()
