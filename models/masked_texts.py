"""Texts with masked words, as several objectives read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from models.batch import HostProperty, Rows, flat_positions
from models.masking import IGNORED, mask_tokens, mask_words
from models.row_random import RowRandom
from models.texts import Row, crop_with_specials
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True)
class MaskedTexts(Rows):
    """Masked texts [B, L] with the ids to recover [B, L]; labels are IGNORED at all other positions."""

    tokens: Tokens
    labels: Tensor

    @classmethod
    def make(
        cls, rows: Sequence[Row], max_tokens: int, rate: float, tokenizer: Tokenizer, random: RowRandom, *,
        whole_words: bool = True,
    ) -> Self:  # fmt: skip
        """Crop the texts, add special tokens, mask whole words or each token on its own, and pad."""
        texts = crop_with_specials(rows, max_tokens, tokenizer, random)
        mask = mask_words if whole_words else mask_tokens
        inputs, labels = mask(texts, tokenizer, rate, random)
        return cls(texts.tokens(inputs), torch.from_numpy(labels))

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.labels != IGNORED)

    def unmasked(self) -> Tokens:
        """Return the texts before masking."""
        return self.tokens.with_ids(torch.where(self.labels == IGNORED, self.tokens.ids, self.labels))
