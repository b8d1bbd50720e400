"""ICT, the inverse cloze task: a sentence finds the text that it was taken from.

A sentence taken at random plays the query, the rest of its text the passage. Mostly the sentence is taken out, so
that meaning has to be matched; now and then it stays in, so that words are matched too.

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
    """How often the sentence leaves its text."""

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
    """Sentences and the texts that they were taken from."""

    sentence: Tokens
    text: Tokens


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Take most sentences out of their texts; crop, add special tokens and pad."""
    texts = [
        without(sentence, text) if random.random() < settings.removal_rate else text
        for text, sentence in zip(raw.texts, raw.contexts, strict=True)
    ]
    sides = ((raw.contexts, settings.sentence_max_tokens), (texts, settings.max_tokens))
    return Batch(*(
        pad([crop_with_specials(ids, longest, tokenizer, random) for ids in rows], tokenizer.pad)
        for rows, longest in sides
    ))  # fmt: skip


def without(sentence: Sequence[int], text: Sequence[int]) -> Sequence[int]:
    """The text with the first run of ids that is the sentence taken out; whole where there is no more in it."""
    run, size = list(sentence), len(sentence)
    for start in range(len(text) - size + 1):
        if list(text[start : start + size]) == run and size < len(text):
            return [*text[:start], *text[start + size :]]
    return text


class Pretraining(nn.Module):
    """L = - mean log of the softmax of a sentence's score with its text over all texts of the batch."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.sentence_max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """The vectors of sentences and of texts, [B, H] each; no local loss."""
        sides = (batch.sentence, batch.text)
        return tuple(pool(self.model.bert(each.ids, each.mask), each.mask, self.pooling) for each in sides), {}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Each sentence against all texts, by inner products."""
        sentences_BH, texts_BH = (each.float() for each in vectors)
        own_B = torch.arange(len(sentences_BH), device=sentences_BH.device)
        scores_BB = sentences_BH @ texts_BH.T
        return {"contrast": contrastive_loss(scores_BB, own_B, temperature=self.settings.temperature)}
