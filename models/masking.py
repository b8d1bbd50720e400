"""Whole-word masking: what the masked-language-model objectives hide, and what they put in its place.

Word pieces that continue a word are hidden with it or not at all. The budget, the walk and the
80/10/10 split are those of Condenser's collator, which CoT-MAE, RetroMAE and DupMAE share
(docs/architecture.md says where each choice comes from).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from models.tokens import Tokenizer

IGNORED = -100
MOST_MASKED = 512

Ids = NDArray[np.int64]


def budget(num_tokens: int, rate: float) -> int:
    """How many tokens to hide of so many, specials not counted; halves are rounded to even."""
    return max(1, min(MOST_MASKED, round(num_tokens * rate)))


def whole_words(ids: Ids, tokenizer: Tokenizer, rate: float, random: Generator) -> NDArray[np.bool_]:
    """Which positions of [CLS] text [SEP] to hide: shuffled words, each skipped that would overshoot the budget."""
    hidden = np.zeros(len(ids), dtype=bool)
    inner = ids[1:-1]
    if not len(inner):
        return hidden
    starts = ~tokenizer.continues[inner]
    starts[0] = True
    words = np.cumsum(starts) - 1
    lengths = np.bincount(words)
    chosen, left = np.zeros(len(lengths), dtype=bool), budget(len(inner), rate)
    for word in random.permutation(len(lengths)).tolist():
        if lengths[word] <= left:
            chosen[word] = True
            left -= lengths[word]
            if not left:
                break
    hidden[1:-1] = chosen[words]
    return hidden


def mask_words(
    rows: Sequence[Ids], tokenizer: Tokenizer, rate: float, random: Generator
) -> tuple[list[Ids], list[Ids]]:
    """Rows of [CLS] text [SEP] with words hidden, and their labels: the id where hidden, IGNORED elsewhere.

    Of the hidden tokens 80 % become [MASK], 10 % any word piece, 10 % stay as they are.
    """
    masked, labels = [], []
    for ids in rows:
        hidden = whole_words(ids, tokenizer, rate, random)
        kind = random.random(len(ids))
        anything = random.integers(tokenizer.num_words, size=len(ids))
        replaced = np.where(kind < 0.8, tokenizer.mask, np.where(kind < 0.9, anything, ids))
        masked.append(np.where(hidden, replaced, ids))
        labels.append(np.where(hidden, ids, IGNORED))
    return masked, labels
