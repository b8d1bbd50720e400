"""Texts for tests of masks and words, as padded rows that have [CLS] and [SEP], and whole-word masking step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.texts import Texts
from tests.tiny import PIECES

CLS, SEP, MASK, UNK = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "[MASK]", "[UNK]"))


def padded(*rows: Sequence[int] | np.ndarray[Any, Any], max_tokens: int = 80) -> Texts:
    """Return rows [CLS] text [SEP], padded with [PAD]."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: len(row)] = row
    return Texts(ids, np.array([len(row) for row in rows]), max_tokens)


def numbers(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


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
    for word in (words[index] for index in order):
        if len(hidden) >= wanted:
            break
        if len(hidden) + len(word) > wanted:
            continue
        hidden += word
    return set(hidden)


def num_of_words(ids: list[int]) -> int:
    return sum(index == 0 or not PIECES[number].startswith("##") for index, number in enumerate(ids))
