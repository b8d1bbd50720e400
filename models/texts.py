"""Texts of a batch as rows [CLS] text [SEP], cropped to a maximal length and padded, all in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from models.row_random import RowRandom
from models.tokens import Tokenizer, Tokens

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]
Row = Sequence[int] | NDArray[np.integer]
"""The token ids of a text."""


@dataclass(frozen=True)
class Texts:
    """Padded rows [CLS] text [SEP]."""

    ids: Ids
    """[B, L]."""
    lengths: Ids
    """[B], the number of tokens including [CLS] and [SEP]."""
    max_tokens: int
    """The length to which texts are cropped; at least L. Random numbers are sampled for so many positions."""

    @cached_property
    def real(self) -> Bools:
        """Return the positions without padding [B, L]."""
        mask: Bools = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        return mask

    @cached_property
    def content(self) -> Bools:
        """Return the positions between [CLS] and [SEP] [B, L]."""
        mask: Bools = np.arange(self.ids.shape[1]) < self.lengths[:, None] - 1
        mask[:, 0] = False
        return mask

    def tokens(self, ids: Ids | None = None) -> Tokens:
        """Return the rows, or others of the same lengths, as tensors."""
        return Tokens(torch.from_numpy(self.ids if ids is None else ids), torch.from_numpy(self.real))

    def twice(self) -> Texts:
        """Return the texts with every row two times: row k becomes rows 2k and 2k + 1."""
        return Texts(self.ids.repeat(2, axis=0), self.lengths.repeat(2), self.max_tokens)


def crop_with_specials(rows: Sequence[Row], max_tokens: int, tokenizer: Tokenizer, random: RowRandom) -> Texts:
    """Add [CLS] and [SEP]; a text of more than `max_tokens` with them is cropped at random at both ends."""
    excess = np.maximum(0, _lengths(rows) - (max_tokens - 2))
    return _with_specials(rows, random.integers(excess + 1), max_tokens, tokenizer)


def truncate_with_specials(rows: Sequence[Row], max_tokens: int, tokenizer: Tokenizer) -> Texts:
    """Add [CLS] and [SEP]; a text of more than `max_tokens` with them is truncated at its end."""
    return _with_specials(rows, np.zeros(len(rows), dtype=np.int64), max_tokens, tokenizer)


def interleave(first: Texts, second: Texts, padding: int) -> Texts:
    """Return the rows of two batches in turn: rows 2k are of the first, rows 2k + 1 of the second."""
    size, length = len(first.ids), max(first.ids.shape[1], second.ids.shape[1])
    ids = np.full((2 * size, length), padding, dtype=np.int64)
    ids[::2, : first.ids.shape[1]], ids[1::2, : second.ids.shape[1]] = first.ids, second.ids
    return Texts(ids, np.stack([first.lengths, second.lengths], axis=1).ravel(), first.max_tokens)


def word_starts(texts: Texts, tokenizer: Tokenizer) -> Bools:
    """Return where a word begins [B, L]; the first token of a text begins one even if it continues a cropped word."""
    starts = texts.content & ~tokenizer.continues[texts.ids]
    starts[:, 1:] |= texts.content[:, 1:] & tokenizer.closes[texts.ids[:, :-1]]
    starts[:, 1:2] = texts.content[:, 1:2]
    return starts


def word_indices(texts: Texts, tokenizer: Tokenizer) -> Ids:
    """Return the index of the word at each position, from 0; -1 for [CLS], [SEP] and padding; [B, L]."""
    words: Ids = np.where(texts.content, word_starts(texts, tokenizer).cumsum(1) - 1, -1)
    return words


def _lengths(rows: Sequence[Row]) -> Ids:
    return np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))


def _with_specials(rows: Sequence[Row], starts: Ids, max_tokens: int, tokenizer: Tokenizer) -> Texts:
    lengths = np.minimum(_lengths(rows), max_tokens - 2)
    longest = int(lengths.max())
    ids = np.full((len(rows), longest + 2), tokenizer.pad, dtype=np.int64)
    crops = [
        row[start:stop] for row, start, stop in zip(rows, starts.tolist(), (starts + lengths).tolist(), strict=True)
    ]
    ids[:, 1:-1][np.arange(longest) < lengths[:, None]] = np.concatenate(crops, dtype=np.int64, casting="unsafe")
    ids[:, 0] = tokenizer.cls
    ids[np.arange(len(rows)), lengths + 1] = tokenizer.sep
    return Texts(ids, lengths + 2, max_tokens)
