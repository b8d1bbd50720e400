"""The batches and position-specific masks of RetroMAE."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from models.masking import IGNORED, sample_masks
from models.papers import retro_mae
from models.papers.retro_mae import (
    make_batch,
    position_specific_mask,
)
from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.models.masked_crops import mask_budget
from tests.models.papers.test_retro_mae import CLS, PAD, SEP, SUM, batch
from tests.tiny import PIECES

# Batches


def test_a_batch_holds_one_crop_thrice(tokenizer: Tokenizer) -> None:
    sizes = tuple(range(40))
    built = batch(tokenizer, sizes=sizes)

    for number, size in enumerate(sizes):
        length = min(size + 2, SUM.max_tokens)
        real, labels, original = built.text.mask[number], built.labels[number], built.original[number]
        words = built.words[number]
        labelled = labels != IGNORED
        assert real.sum() == length
        assert original[[0, length - 1]].tolist() == [CLS, SEP]
        assert torch.equal(torch.where(labelled, labels, built.text.ids[number]), original)
        assert torch.equal(words >= 0, real & (torch.arange(len(real)) % (length - 1) != 0))
        assert labelled.sum() <= mask_budget(length, 0.3)
        assert built.budgets[number] == mask_budget(length, 0.5)
        pieces = [PIECES[piece] for piece in original[1 : length - 1].tolist()]
        starts = [position == 0 or not piece.startswith("##") for position, piece in enumerate(pieces)]
        assert words[1 : length - 1].tolist() == [sum(starts[: position + 1]) - 1 for position in range(len(starts))]


def test_the_first_tokens_of_a_long_text_are_kept_as_released(tokenizer: Tokenizer) -> None:
    texts = [list(range(5, 45)), list(range(20, 38)), [9, 8], list(range(6, 25))]
    settings = dataclasses.replace(SUM, crop="end")

    batches = [make_batch(RawBatch(texts), tokenizer, settings, RowRandom(seed, 0)) for seed in range(4)]

    expected = [[CLS, *ids[:18], SEP] + [PAD] * max(0, 18 - len(ids)) for ids in texts]
    assert [batch.original.tolist() for batch in batches] == [expected] * 4
    cropped = make_batch(RawBatch(texts), tokenizer, SUM, RowRandom(1, 0))
    assert cropped.original[0].tolist() != expected[0]
    assert cropped.original[1:3].tolist() == expected[1:3]


def test_special_tokens_count_for_both_budgets(tokenizer: Tokenizer) -> None:
    ids = [PIECES.index(piece) for piece in ("king", "river", "stone", "bread", "tree", "music", "winter", "ocean")]

    batch = make_batch(RawBatch([ids]), tokenizer, SUM, RowRandom(0, 0))

    assert (batch.labels != IGNORED).sum() == 3  # 0.3 * 10, not 0.3 * 8
    assert batch.budgets.tolist() == [5]


def test_rows_of_a_batch(tokenizer: Tokenizer) -> None:
    whole = batch(tokenizer)

    part = whole.rows(1, 3)

    assert len(part) == 2
    assert torch.equal(part.words, whole.words[1:3])
    assert torch.equal(part.budgets, whole.budgets[1:3])
    assert whole.num_terms("mlm") == int((whole.labels != IGNORED).sum())
    assert whole.num_terms("decoder") == 18 + 9 + 18 + 4
    for loss in ("mlm", "decoder"):
        assert whole.num_terms(loss) == sum(whole.rows(n, n + 1).num_terms(loss) for n in range(4))


# The position-specific mask


@torch.no_grad()
def test_each_row_sees_what_one_of_the_masks_leaves(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equation 5, column by column."""
    built = batch(tokenizer)
    length, drawn = built.words.shape[1], []

    def kept(words: Tensor, budgets: Tensor, num_masks: int, limits: object) -> Tensor:
        drawn.append(sample_masks(words, budgets, num_masks))
        return drawn[-1]

    monkeypatch.setattr(retro_mae, "sample_masks", kept)
    torch.manual_seed(0)
    visible = position_specific_mask(built.words, built.budgets, built.text.mask)

    assert visible.shape == (4, length - 1, length)
    assert drawn[0].shape[1] == length
    for text in range(4):
        hidden = [set(np.flatnonzero(mask).tolist()) for mask in drawn[0][text].numpy()]
        real = range(int(built.text.mask[text].sum()))
        picked = set()
        for row in range(1, length):
            seen = set(np.flatnonzero(visible[text, row - 1].numpy()).tolist())
            fitting = [number for number, mask in enumerate(hidden) if seen == {*real} - mask - {row}]
            assert fitting, (text, row)
            picked.add(fitting[0])
            assert {0, real[-1]} - {row} <= seen
        assert len(picked) > 1


def test_a_text_has_at_most_so_many_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    labelled: list[int] = []

    def masks(words: Tensor, budgets: Tensor, num_masks: int, limits: object) -> Tensor:
        labelled.append(num_masks)
        return torch.zeros(len(words), num_masks, words.shape[1], dtype=torch.bool)

    monkeypatch.setattr(retro_mae, "sample_masks", masks)
    for length in (7, 256, 300):
        words = torch.full((1, length), -1)
        position_specific_mask(words, torch.tensor([2]), words < 0)

    assert labelled == [7, 256, 256]


def test_rows_pick_masks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 11  # as many masks; mask r hides column r + 1 modulo its own, which tells which was picked

    def masks(words: Tensor, budgets: Tensor, num_masks: int, limits: object) -> Tensor:
        return torch.eye(num_masks, words.shape[1], dtype=torch.bool).expand(len(words), -1, -1)

    monkeypatch.setattr(retro_mae, "sample_masks", masks)
    torch.manual_seed(0)
    words = torch.zeros(3000, length, dtype=torch.long)
    visible = position_specific_mask(words, torch.ones(3000), torch.ones_like(words, dtype=torch.bool))

    # Row 4 does not see itself and, by mask 0 to 10, one column more: each is hidden once in 11.
    hidden = (~visible[:, 3]).float().mean(0)
    np.testing.assert_allclose(np.delete(hidden.numpy(), 4), 1 / length, atol=0.02)
    assert hidden[4] == 1
