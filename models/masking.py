"""Masking for masked-language-model objectives: which tokens are selected, and what replaces them.

Whole-word masking selects all WordPiece tokens of a word or none. The budget, the order and the 80/10/10 split are
those of Condenser's collator, which CoT-MAE, RetroMAE and DupMAE share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from models.tokens import Tokenizer

IGNORED = -100
MAX_MASKED = 512

Ids = NDArray[np.int64]


def mask_budget(num_tokens: int, rate: float) -> int:
    """Return the number of tokens to mask out of `num_tokens`; halves are rounded to even."""
    return max(1, min(MAX_MASKED, round(num_tokens * rate)))


def word_indices(ids: Ids, tokenizer: Tokenizer) -> Ids:
    """Return the index of the word at each position of [CLS] text [SEP], from 0; -1 for [CLS] and [SEP]; [L]."""
    words = np.full(len(ids), -1, dtype=np.int64)
    starts = ~tokenizer.continues[ids[1:-1]]
    starts[:1] = True
    words[1:-1] = np.cumsum(starts) - 1
    return words


def select_words(
    ids: Ids, tokenizer: Tokenizer, rate: float, random: Generator, *, specials_count: bool = False
) -> NDArray[np.bool_]:
    """Select the positions of [CLS] text [SEP] to mask: words in random order, skipping those that exceed the budget.

    Returns a mask [L]. The budget is a share of the tokens, including [CLS] and [SEP] if `specials_count`.
    """
    selected = np.zeros(len(ids), dtype=bool)
    if len(ids) < 3:
        return selected
    words = word_indices(ids, tokenizer)[1:-1]
    lengths = np.bincount(words)
    selected_words = np.zeros(len(lengths), dtype=bool)
    remaining = mask_budget(len(ids) if specials_count else len(words), rate)
    for word in random.permutation(len(lengths)).tolist():
        if lengths[word] <= remaining:
            selected_words[word] = True
            remaining -= lengths[word]
            if not remaining:
                break
    selected[1:-1] = selected_words[words]
    return selected


def select_tokens(ids: Ids, tokenizer: Tokenizer, rate: float, random: Generator) -> NDArray[np.bool_]:
    """Select the positions of [CLS] text [SEP] to mask, each token on its own as in BERT; returns a mask [L]."""
    selected = np.zeros(len(ids), dtype=bool)
    positions = 1 + np.flatnonzero(~tokenizer.is_special[ids[1:-1]])
    selected[random.permutation(positions)[: mask_budget(len(ids) - 2, rate)]] = True
    return selected


def mask_words(
    rows: Sequence[Ids], tokenizer: Tokenizer, rate: float, random: Generator, *, specials_count: bool = False
) -> tuple[list[Ids], list[Ids]]:
    """Mask words of rows [CLS] text [SEP]; return the rows and their labels: the id where masked, IGNORED elsewhere."""
    selected = [select_words(ids, tokenizer, rate, random, specials_count=specials_count) for ids in rows]
    return replace_selected(rows, selected, tokenizer, random)


def replace_selected(
    rows: Sequence[Ids], selected: Sequence[NDArray[np.bool_]], tokenizer: Tokenizer, random: Generator
) -> tuple[list[Ids], list[Ids]]:
    """Return the rows with the selected tokens replaced, and their labels.

    80 % of the selected tokens become [MASK], 10 % a random token, and 10 % stay. Special tokens within a text ([UNK])
    are neither replaced nor labelled.
    """
    masked, labels = [], []
    for ids, selected_L in zip(rows, selected, strict=True):
        labelled = selected_L & ~tokenizer.is_special[ids]
        kind = random.random(len(ids))
        random_ids = random.integers(tokenizer.vocab_size, size=len(ids))
        replacement = np.where(kind < 0.8, tokenizer.mask, np.where(kind < 0.9, random_ids, ids))
        masked.append(np.where(labelled, replacement, ids))
        labels.append(np.where(labelled, ids, IGNORED))
    return masked, labels


def sample_masks(words_BL: Tensor, budgets_B: Tensor, num_masks: int) -> Tensor:
    """Sample independent whole-word masks of each text [B, R, L]: a vectorised `select_words`, on the tensors' device.

    `words_BL` has the index of each position's word, -1 where nothing may be masked. Words are taken in random order;
    a word that exceeds the remaining budget is skipped. Each pass takes all words up to the next one that does not
    fit. There are thus at most as many passes as the longest word has tokens, and no loop over texts, masks or words.
    """
    batch, device = len(words_BL), words_BL.device
    num_words = int(words_BL.max()) + 1
    if num_words <= 0:
        return torch.zeros(batch, num_masks, words_BL.shape[1], dtype=torch.bool, device=device)
    real_BL = words_BL >= 0
    lengths_BW = torch.zeros(batch, num_words, dtype=torch.int32, device=device)
    lengths_BW.scatter_add_(1, words_BL.clamp(min=0), real_BL.to(torch.int32))
    order_BRW = torch.rand(batch, num_masks, num_words, device=device).argsort(-1)
    lengths_BRW = lengths_BW[:, None].expand(-1, num_masks, -1).gather(2, order_BRW)
    remaining_BR1 = budgets_B.to(torch.int32)[:, None, None].expand(-1, num_masks, 1)
    selected_BRW = torch.zeros_like(lengths_BRW, dtype=torch.bool)
    open_BRW = lengths_BRW > 0
    for _ in range(int(lengths_BW.max())):
        open_BRW = open_BRW & (lengths_BRW <= remaining_BR1)
        if not open_BRW.any():
            break
        open_lengths_BRW = lengths_BRW * open_BRW
        taken_BRW = open_BRW & (open_lengths_BRW.cumsum(-1) <= remaining_BR1)
        selected_BRW, open_BRW = selected_BRW | taken_BRW, open_BRW & ~taken_BRW
        remaining_BR1 = remaining_BR1 - (lengths_BRW * taken_BRW).sum(-1, keepdim=True)
    masked_BRW = torch.zeros_like(selected_BRW).scatter(2, order_BRW, selected_BRW)
    masked_BRL = masked_BRW.gather(2, words_BL.clamp(min=0)[:, None].expand(-1, num_masks, -1))
    return masked_BRL & real_BL[:, None]
