"""Masking for masked-language-model objectives: which tokens are selected, and what replaces them.

Whole-word masking selects all tokens of a word or none. The budget, the order and the 80/10/10 split are
those of Condenser's collator, which CoT-MAE, RetroMAE and DupMAE share. All rows of a batch are masked together.

Shape suffixes: B batch, L length, W words of a text in random order.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.row_random import RowRandom, as_integers
from models.texts import Bools, Ids, Texts, word_starts
from models.tokens import Tokenizer

IGNORED = -100
MAX_MASKED = 512
POSITION_BITS = np.uint64(16)  # a sort key's low bits: the position at which a word begins
NOTHING = np.uint64(2**64 - 1)  # the sort key of a position at which no word begins


def mask_budgets(num_tokens_B: Ids, rate: float) -> Ids:
    """Return the number of tokens to mask out of each text's [B]; halves are rounded to even."""
    budgets_B: Ids = np.clip(np.rint(num_tokens_B * rate), 1, MAX_MASKED).astype(np.int64)
    return budgets_B


def select_words(
    texts: Texts, tokenizer: Tokenizer, rate: float, random: RowRandom, *, specials_count: bool = False
) -> Bools:
    """Select the positions to mask [B, L]: words in random order, skipping those that exceed the budget.

    The budget is a share of the tokens, including [CLS] and [SEP] if `specials_count`.
    """
    starts_BL = word_starts(texts, tokenizer)
    budgets_B = mask_budgets(texts.lengths - (0 if specials_count else 2), rate)
    order_BW, lengths_BW = _random_order(starts_BL, texts, random)
    selected_BL = np.zeros_like(starts_BL)
    np.put_along_axis(selected_BL, order_BW, _within_budget(lengths_BW, budgets_B), axis=1)
    continued_BL = texts.content & ~starts_BL
    for _ in range(int(lengths_BW.max(initial=1)) - 1):  # from each word's first token to its others
        selected_BL[:, 1:] |= selected_BL[:, :-1] & continued_BL[:, 1:]
    return selected_BL


def select_tokens(texts: Texts, tokenizer: Tokenizer, rate: float, random: RowRandom) -> Bools:
    """Select the positions to mask [B, L], each token on its own as in BERT; special tokens are never selected."""
    eligible_BL = texts.content & ~tokenizer.is_special[texts.ids]
    keys_BL = np.where(eligible_BL, _keys(texts, random), NOTHING)
    budgets_B = np.minimum(mask_budgets(texts.lengths - 2, rate), eligible_BL.sum(1))
    last_B = np.maximum(budgets_B - 1, 0)
    thresholds_B1 = np.take_along_axis(np.sort(keys_BL, axis=1), last_B[:, None], axis=1)
    selected_BL: Bools = eligible_BL & (keys_BL <= thresholds_B1)
    return selected_BL


def mask_words(
    texts: Texts, tokenizer: Tokenizer, rate: float, random: RowRandom, *, specials_count: bool = False
) -> tuple[Ids, Ids]:
    """Mask words; return the ids [B, L] and their labels: the id where masked, IGNORED elsewhere."""
    selected_BL = select_words(texts, tokenizer, rate, random, specials_count=specials_count)
    return replace_selected(texts, selected_BL, tokenizer, random)


def mask_tokens(texts: Texts, tokenizer: Tokenizer, rate: float, random: RowRandom) -> tuple[Ids, Ids]:
    """Mask tokens, each on its own; return the ids [B, L] and their labels: the id where masked, IGNORED elsewhere."""
    return replace_selected(texts, select_tokens(texts, tokenizer, rate, random), tokenizer, random)


def replace_selected(texts: Texts, selected_BL: Bools, tokenizer: Tokenizer, random: RowRandom) -> tuple[Ids, Ids]:
    """Return the ids [B, L] with the selected tokens replaced, and their labels.

    80 % of the selected tokens become [MASK], 10 % a random token, and 10 % stay. Special tokens within a text ([UNK])
    are neither replaced nor labelled.
    """
    labelled_BL = selected_BL & ~tokenizer.is_special[texts.ids]
    rows_N, columns_N = np.divmod(indices_N := np.flatnonzero(labelled_BL), labelled_BL.shape[1])
    bits_N = random.bits(len(texts.ids), texts.max_tokens)[rows_N, columns_N]
    ids_N, kind_N = texts.ids.ravel()[indices_N], bits_N & np.uint64(2**32 - 1)
    random_N = as_integers(bits_N, tokenizer.vocab_size)
    masked_BL, labels_BL = texts.ids.copy(), np.full_like(texts.ids, IGNORED)
    masked_BL.ravel()[indices_N] = np.where(
        kind_N < int(0.8 * 2**32), tokenizer.mask, np.where(kind_N < int(0.9 * 2**32), random_N, ids_N)
    )
    labels_BL.ravel()[indices_N] = ids_N
    return masked_BL, labels_BL


def _keys(texts: Texts, random: RowRandom) -> NDArray[np.uint64]:
    """Return a random sort key for each position [B, L]; the low bits are the position, so no two are equal."""
    length = texts.ids.shape[1]
    bits_BL = random.bits(len(texts.ids), texts.max_tokens)[:, :length]
    return bits_BL >> POSITION_BITS << POSITION_BITS | np.arange(length, dtype=np.uint64)


def _random_order(starts_BL: Bools, texts: Texts, random: RowRandom) -> tuple[Ids, Ids]:
    """Return the words of each text in random order: first positions and lengths [B, W]; length 0 fills short rows."""
    num_words = int(starts_BL.sum(1).max(initial=0))
    keys_BL = np.where(starts_BL, _keys(texts, random), NOTHING)
    order_BW = (np.sort(keys_BL, axis=1)[:, :num_words] & np.uint64(2**16 - 1)).astype(np.int64)
    order_BW[order_BW == 2**16 - 1] = 0  # [CLS]
    return order_BW, np.take_along_axis(_word_lengths(starts_BL, texts), order_BW, axis=1)


def _word_lengths(starts_BL: Bools, texts: Texts) -> Ids:
    """Return the number of tokens of the word that begins at each position, 0 where none begins [B, L]."""
    lengths_BL = starts_BL.astype(np.int64)
    continued_BL, following_BL = texts.content & ~starts_BL, starts_BL
    while following_BL.any():  # once for each token of the longest word, so there is no loop over words
        following_BL = following_BL[:, :-1] & continued_BL[:, lengths_BL.shape[1] - following_BL.shape[1] + 1 :]
        lengths_BL[:, : following_BL.shape[1]] += following_BL
    return lengths_BL


def _within_budget(lengths_BW: Ids, budgets_B: Ids) -> Bools:
    """Return which words are selected when each is taken in order unless it exceeds what remains of the budget [B, W].

    A pass takes all words up to the next one that does not fit, of all texts that have budget left. There are at most
    as many passes as the longest word has tokens, since the budget that remains is then below the length of a skipped
    word.
    """
    taken_BW = np.zeros(lengths_BW.shape, dtype=bool)
    num_first = int(budgets_B.max())  # a word has a token, so at first no more words than this are taken
    taken_BW[:, :num_first] = _next_words(lengths_BW[:, :num_first], taken_BW[:, :num_first], budgets_B)
    remaining_B = budgets_B - np.where(taken_BW[:, :num_first], lengths_BW[:, :num_first], 0).sum(1)
    rows = np.flatnonzero(remaining_B > 0)
    while len(rows):
        new = _next_words(lengths_BW[rows], taken_BW[rows], remaining_B[rows])
        taken_BW[rows] |= new
        remaining_B[rows] -= np.where(new, lengths_BW[rows], 0).sum(1)
        rows = rows[new.any(1) & (remaining_B[rows] > 0)]
    return taken_BW


def _next_words(lengths_BW: Ids, taken_BW: Bools, remaining_B: Ids) -> Bools:
    """Return the words up to the next that exceeds what remains of the budget; words that are too long are skipped."""
    fits_BW = (lengths_BW > 0) & (lengths_BW <= remaining_B[:, None]) & ~taken_BW
    words_BW: Bools = fits_BW & (np.where(fits_BW, lengths_BW, 0).cumsum(1) <= remaining_B[:, None])
    return words_BW


def word_limits(words_BL: Tensor) -> tuple[int, int]:
    """Return the largest number of words in a text and of tokens in a word; `words_BL` is that of `sample_masks`."""
    num_words = int(words_BL.max()) + 1
    if not num_words:
        return 0, 0
    counts_BW = words_BL.new_zeros(len(words_BL), num_words + 1)
    counts_BW.scatter_add_(1, words_BL + 1, torch.ones_like(words_BL))
    return num_words, int(counts_BW[:, 1:].max())


def sample_masks(words_BL: Tensor, budgets_B: Tensor, num_masks: int, limits: tuple[int, int] | None = None) -> Tensor:
    """Sample independent whole-word masks of each text [B, R, L]: a vectorised `select_words`, on the tensors' device.

    `words_BL` has the index of each position's word, -1 where nothing may be masked. Words are taken in random order;
    a word that exceeds the remaining budget is skipped. Each pass takes all words up to the next one that does not
    fit. There are thus at most as many passes as the longest word has tokens, and no loop over texts, masks or words.
    `limits` are the words' `word_limits`, if they are known: on a GPU the host would wait for them.
    """
    batch, device = len(words_BL), words_BL.device
    num_words, longest_word = limits or word_limits(words_BL)
    if not num_words:
        return torch.zeros(batch, num_masks, words_BL.shape[1], dtype=torch.bool, device=device)
    real_BL = words_BL >= 0
    lengths_BW = torch.zeros(batch, num_words, dtype=torch.int32, device=device)
    lengths_BW.scatter_add_(1, words_BL.clamp(min=0), real_BL.to(torch.int32))
    order_BRW = torch.rand(batch, num_masks, num_words, device=device).argsort(-1)
    lengths_BRW = lengths_BW[:, None].expand(-1, num_masks, -1).gather(2, order_BRW)
    remaining_BR1 = budgets_B.to(torch.int32)[:, None, None].expand(-1, num_masks, 1)
    selected_BRW = torch.zeros_like(lengths_BRW, dtype=torch.bool)
    open_BRW = lengths_BRW > 0
    for _ in range(longest_word):
        open_BRW = open_BRW & (lengths_BRW <= remaining_BR1)
        if device.type == "cpu" and not open_BRW.any():  # the host would wait for a GPU to know
            break
        open_lengths_BRW = lengths_BRW * open_BRW
        taken_BRW = open_BRW & (open_lengths_BRW.cumsum(-1) <= remaining_BR1)
        selected_BRW, open_BRW = selected_BRW | taken_BRW, open_BRW & ~taken_BRW
        remaining_BR1 = remaining_BR1 - (lengths_BRW * taken_BRW).sum(-1, keepdim=True)
    masked_BRW = torch.zeros_like(selected_BRW).scatter(2, order_BRW, selected_BRW)
    masked_BRL = masked_BRW.gather(2, words_BL.clamp(min=0)[:, None].expand(-1, num_masks, -1))
    return masked_BRL & real_BL[:, None]
