"""Whole-word masking: what the masked-language-model objectives hide, and what they put in its place.

Word pieces that continue a word are hidden with it or not at all. The budget, the walk and the
80/10/10 split are those of Condenser's collator, which CoT-MAE, RetroMAE and DupMAE share
(docs/architecture.md says where each choice comes from).
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
    """How many tokens to hide of so many; halves are rounded to even."""
    return max(1, min(MAX_MASKED, round(num_tokens * rate)))


def word_indices(ids: Ids, tokenizer: Tokenizer) -> Ids:
    """For each position of [CLS] text [SEP] the number of its word, counted from 0; -1 for the two specials."""
    words = np.full(len(ids), -1, dtype=np.int64)
    starts = ~tokenizer.continues[ids[1:-1]]
    starts[:1] = True
    words[1:-1] = np.cumsum(starts) - 1
    return words


def select_words(
    ids: Ids, tokenizer: Tokenizer, rate: float, random: Generator, *, specials_count: bool = False
) -> NDArray[np.bool_]:
    """Which positions of [CLS] text [SEP] to hide: shuffled words, each skipped that would overshoot the budget.

    The budget is a share of the tokens without [CLS] and [SEP], or with them where `specials_count`.
    """
    hidden = np.zeros(len(ids), dtype=bool)
    if len(ids) < 3:
        return hidden
    words = word_indices(ids, tokenizer)[1:-1]
    lengths = np.bincount(words)
    chosen, left = np.zeros(len(lengths), dtype=bool), mask_budget(len(ids) if specials_count else len(words), rate)
    for word in random.permutation(len(lengths)).tolist():
        if lengths[word] <= left:
            chosen[word] = True
            left -= lengths[word]
            if not left:
                break
    hidden[1:-1] = chosen[words]
    return hidden


def select_tokens(ids: Ids, tokenizer: Tokenizer, rate: float, random: Generator) -> NDArray[np.bool_]:
    """BERT's own masking: which positions of [CLS] text [SEP] to hide, token by token, as many as the budget has."""
    hidden = np.zeros(len(ids), dtype=bool)
    places = 1 + np.flatnonzero(~tokenizer.is_special[ids[1:-1]])
    hidden[random.permutation(places)[: mask_budget(len(ids) - 2, rate)]] = True
    return hidden


def mask_words(
    rows: Sequence[Ids], tokenizer: Tokenizer, rate: float, random: Generator, *, specials_count: bool = False
) -> tuple[list[Ids], list[Ids]]:
    """Rows of [CLS] text [SEP] with words hidden, and their labels: the id where hidden, IGNORED elsewhere."""
    hidden = [select_words(ids, tokenizer, rate, random, specials_count=specials_count) for ids in rows]
    return replace_selected(rows, hidden, tokenizer, random)


def replace_selected(
    rows: Sequence[Ids], hidden: Sequence[NDArray[np.bool_]], tokenizer: Tokenizer, random: Generator
) -> tuple[list[Ids], list[Ids]]:
    """The rows with what is hidden replaced, and their labels.

    Of the hidden tokens 80 % become [MASK], 10 % any word piece, 10 % stay as they are. Special tokens within a
    text ([UNK]) are never asked for.
    """
    masked, labels = [], []
    for ids, chosen in zip(rows, hidden, strict=True):
        asked = chosen & ~tokenizer.is_special[ids]
        kind = random.random(len(ids))
        anything = random.integers(tokenizer.vocab_size, size=len(ids))
        instead = np.where(kind < 0.8, tokenizer.mask, np.where(kind < 0.9, anything, ids))
        masked.append(np.where(asked, instead, ids))
        labels.append(np.where(asked, ids, IGNORED))
    return masked, labels


def sample_masks(words_BL: Tensor, budgets_B: Tensor, num_masks: int) -> Tensor:
    """Independent whole-word masks of each text, [B, R, L], True where masked: `select_words` without its loops.

    `words_BL` numbers the words of each text from 0, -1 where there is none to hide. It draws on the tensors' device.
    Words are taken in a random order as long as they fit the budget; one that does not is skipped, and the next that
    does is sought among those after it. Each pass takes all up to the next that does not fit, so there are at most as
    many passes as the longest word has pieces, and no loop over texts, masks or words.
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
    left_BR1 = budgets_B.to(torch.int32)[:, None, None].expand(-1, num_masks, 1)
    taken_BRW = torch.zeros_like(lengths_BRW, dtype=torch.bool)
    open_BRW = lengths_BRW > 0
    for _ in range(int(lengths_BW.max())):
        open_BRW = open_BRW & (lengths_BRW <= left_BR1)
        if not open_BRW.any():
            break
        wanted_BRW = lengths_BRW * open_BRW
        now_BRW = open_BRW & (wanted_BRW.cumsum(-1) <= left_BR1)
        taken_BRW, open_BRW = taken_BRW | now_BRW, open_BRW & ~now_BRW
        left_BR1 = left_BR1 - (lengths_BRW * now_BRW).sum(-1, keepdim=True)
    hidden_BRW = torch.zeros_like(taken_BRW).scatter(2, order_BRW, taken_BRW)
    hidden_BRL = hidden_BRW.gather(2, words_BL.clamp(min=0)[:, None].expand(-1, num_masks, -1))
    return hidden_BRL & real_BL[:, None]
