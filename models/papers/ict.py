"""ICT, the inverse cloze task: retrieve the text that a sentence was taken from.

A random sentence is the query, its text the passage. Usually the sentence is removed from the text, so the model must
match meaning; sometimes it is kept, so the model also learns to match words.

Lee et al., Latent Retrieval for Weakly Supervised Open Domain Question Answering, section 4; Chang et al.,
Pre-training Tasks for Embedding-based Large-scale Retrieval, section 3; a baseline of A Contrastive Pre-training
Approach to Learn Discriminative Autoencoder for Dense Retrieval.

Shape suffixes: B batch, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.random import Generator
from torch import nn

from models.batch import Rows
from models.losses import contrastive_loss
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates, crop_with_specials
from models.representation import pool
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The removal rate of sentences, the softmax temperature and the length limits."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "sentences"
    counts_terms: ClassVar[bool] = False

    removal_rate: float
    temperature: float
    max_tokens: int
    """The length of a text with [CLS] and [SEP]; a longer one is cropped at both ends."""
    sentence_max_tokens: int

    def __post_init__(self) -> None:
        check_rates(removal_rate=self.removal_rate)
        check_lengths(max_tokens=self.max_tokens, sentence_max_tokens=self.sentence_max_tokens)
        if self.temperature <= 0:
            raise ValueError("temperature: expected a number above 0")


@dataclass(frozen=True)
class Batch(Rows):
    """Sentences, and the texts from which they were taken."""

    sentence: Tokens
    text: Tokens


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Remove sentences from their texts with probability `removal_rate`; crop, add special tokens and pad."""
    texts = [
        remove_sentence(sentence, text) if random.random() < settings.removal_rate else text
        for text, sentence in zip(raw.texts, raw.contexts, strict=True)
    ]
    sides = ((raw.contexts, settings.sentence_max_tokens), (texts, settings.max_tokens))
    return Batch(*(
        pad([crop_with_specials(ids, longest, tokenizer, random) for ids in rows], tokenizer.pad)
        for rows, longest in sides
    ))  # fmt: skip


def remove_sentence(sentence: Sequence[int], text: Sequence[int]) -> Sequence[int]:
    """Return the text without the sentence's first occurrence; unchanged if the sentence is the complete text."""
    ids, size = list(sentence), len(sentence)
    for start in range(len(text) - size + 1):
        if list(text[start : start + size]) == ids and size < len(text):
            return [*text[:start], *text[start + size :]]
    return text


class Pretraining(nn.Module):
    """L = - mean log softmax of a sentence's score with its own text, over all texts of the batch."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.sentence_max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return the vectors of sentences and of texts, [B, H] each, and no local loss."""
        sides = (batch.sentence, batch.text)
        return tuple(pool(self.model.bert(side.ids, side.mask), side.mask, self.pooling) for side in sides), {}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return the contrastive loss of each sentence's text among all texts, scored by inner products."""
        sentences_BH, texts_BH = (side_BH.float() for side_BH in vectors)
        targets_B = torch.arange(len(sentences_BH), device=sentences_BH.device)
        scores_BB = sentences_BH @ texts_BH.T
        return {"contrast": contrastive_loss(scores_BB, targets_B, temperature=self.settings.temperature)}
