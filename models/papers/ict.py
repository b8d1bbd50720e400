"""ICT, the inverse cloze task: retrieve the text that a sentence was taken from.

A random sentence is the query, its text the passage. Usually the sentence is removed from the text, so the model must
match meaning; sometimes it is kept, so the model also learns to match words.

Lee et al., Latent Retrieval for Weakly Supervised Open Domain Question Answering, section 4; Chang et al.,
Pre-training Tasks for Embedding-based Large-scale Retrieval, section 3; a baseline of A Contrastive Pre-training
Approach to Learn Discriminative Autoencoder for Dense Retrieval.

Shape suffixes: B batch, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from models.batch import Rows
from models.losses import contrastive_loss
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.texts import Row, crop_with_specials
from models.token_texts import drops_blanks
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The removal rate of sentences, the softmax temperature and the length limits."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "sentences"
    counts_terms: ClassVar[bool] = False
    trains_heads: ClassVar[bool] = False

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


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Remove sentences from their texts with probability `removal_rate`; crop, add special tokens and pad."""
    removed = random.uniform(len(raw.texts), 1)[:, 0] < settings.removal_rate
    texts = [
        _without(sentence, text, tokenizer) if remove else text
        for text, sentence, remove in zip(raw.texts, raw.contexts, removed.tolist(), strict=True)
    ]
    sentences = crop_with_specials(raw.contexts, settings.sentence_max_tokens, tokenizer, random)
    return Batch(sentences.tokens(), crop_with_specials(texts, settings.max_tokens, tokenizer, random).tokens())


def _without(sentence: Row, text: Row, tokenizer: Tokenizer) -> Row:
    if drops_blanks(tokenizer.kind):
        return remove_sentence(sentence, text)
    return remove_characters(sentence, text, tokenizer.texts)


def remove_sentence(sentence: Row, text: Row) -> Row:
    """Return the text without the sentence's first occurrence; unchanged if the sentence is the complete text."""
    size, ids, wanted = len(sentence), np.asarray(text, dtype=np.int64), np.asarray(sentence, dtype=np.int64).tobytes()
    if not 0 < size < len(ids):
        return text
    data, offset = ids.tobytes(), -1
    while (offset := data.find(wanted, offset + 1)) >= 0:
        start, within = divmod(offset, ids.itemsize)
        if not within:  # bytes that begin within an id are of other ids
            return np.delete(ids, slice(start, start + size))
    return text


def remove_characters(sentence: Row, text: Row, texts: Mapping[int, bytes]) -> Row:
    """Return the text without the first occurrence of the sentence's characters; `texts` are those of tokens.

    If tokens contain blanks, a sentence has other tokens by itself than in its text: `River` and `Ġriver`. The text is
    unchanged if nothing else would remain.
    """
    wanted, parts = b"".join(texts[number] for number in sentence).strip(), [texts[number] for number in text]
    ends, joined, offset = np.cumsum([len(part) for part in parts]), b"".join(parts), -1
    begins = [end - len(part.lstrip()) for end, part in zip(ends.tolist(), parts, strict=True)]
    while wanted and (offset := joined.find(wanted, offset + 1)) >= 0:
        first, last = np.searchsorted(ends, [offset, offset + len(wanted) - 1], "right").tolist()
        if begins[first] == offset:
            rest = joined[: ends[first] - len(parts[first])] + joined[ends[last] :]
            return np.delete(np.asarray(text, dtype=np.int64), slice(first, last + 1)) if rest.strip() else text
    return text


class Pretraining(nn.Module):
    """L = - mean log softmax of a sentence's score with its own text, over all texts of the batch."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.sentence_max_tokens)
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return the vectors of sentences and of texts, [B, H] each, and no local loss."""
        return tuple(self.vectors(side) for side in (batch.sentence, batch.text)), {}

    def vectors(self, side: Tokens) -> Tensor:
        """Return the vectors [B, H] of texts or sentences."""
        return pool(self.model(side), side.mask, self.pooling)

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return the contrastive loss of each sentence's text among all texts, scored by inner products."""
        sentences_BH, texts_BH = (side_BH.float() for side_BH in vectors)
        targets_B = torch.arange(len(sentences_BH), device=sentences_BH.device)
        scores_BB = sentences_BH @ texts_BH.T
        return {"contrast": contrastive_loss(scores_BB, targets_B, temperature=self.settings.temperature)}
