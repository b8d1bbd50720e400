"""PROP: predict which of two word sets represents a text better.

The query-likelihood model treats a query as words sampled from its document. Pairs of word sets are sampled from a
text's language model, and the model learns to rank the likelier set of a pair first. Here it is a bi-encoder, CPDAE's
baseline: word sets and texts are encoded separately.

Ma et al., PROP: Pre-training with Representative Words Prediction for Ad-hoc Retrieval, section 3. The bi-encoder is
mentioned and not described by Ma et al., A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for
Dense Retrieval, section 4.1.2; its score is the dot product of fine-tuning.

Shape suffixes: B texts, L length of a text, P pairs of sets per text, W words of a set, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import relu

from models.batch import Rows
from models.losses import recovery_loss
from models.masking import IGNORED, Ids, replace_selected, select_tokens
from models.objective import Losses, Vectors
from models.pretraining import (
    Initialisation,
    RawBatch,
    Reads,
    TermCounts,
    check_lengths,
    check_rates,
    crop_with_specials,
)
from models.representation import pool
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How word sets are sampled, the margin of the ranking loss, and the length limits."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = True

    mean_words: float
    """lambda of the Poisson distribution of a set's length; a length of 0 is sampled again."""
    pairs: int
    """The number of pairs of word sets per text."""
    margin: float
    mask_rate: float
    smoothing: float
    """mu, the number of pseudo-counts from the collection's word distribution (Dirichlet smoothing)."""
    max_tokens: int
    words_max_tokens: int
    """The length of a word set with [CLS] and [SEP]; longer sets are not sampled."""

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens, words_max_tokens=self.words_max_tokens)
        for name in ("mean_words", "margin", "smoothing"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: expected a number above 0")
        if self.pairs < 1:
            raise ValueError("pairs: expected 1 or more")


@dataclass(frozen=True)
class Batch(Rows):
    """Masked texts with the ids to recover, and word sets [B, 2P, W + 2]; the likelier set of each pair comes first.

    `ranked` [B, P] is False where the sets of a pair are equally likely: such a pair has no target.
    """

    text: Tokens
    text_labels: Tensor
    sets: Tokens
    ranked: Tensor

    def num_terms(self, loss: str) -> int:
        """Return the number of masked tokens for `mlm`, and of ranked pairs for `ranking`."""
        return int((self.text_labels != IGNORED).sum() if loss == "mlm" else self.ranked.sum())


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Crop, mask each token on its own as in BERT, and sample word sets from the unmasked crop's language model."""
    if raw.terms is None:
        raise ValueError("sampling word sets needs term counts, found none")
    language = LanguageModel(raw.terms, tokenizer, settings.smoothing)
    texts = [crop_with_specials(ids, settings.max_tokens, tokenizer, random) for ids in raw.texts]
    selected = [select_tokens(ids, tokenizer, settings.mask_rate, random) for ids in texts]
    inputs, labels = replace_selected(texts, selected, tokenizer, random)
    sets: list[Ids] = []
    ranked = np.zeros((len(texts), settings.pairs), dtype=bool)
    for row, text in enumerate(texts):
        own = text[~tokenizer.is_special[text]]
        lengths = set_lengths(settings.mean_words, settings.pairs, settings.words_max_tokens - 2, random)
        for pair, length in enumerate(lengths.tolist()):
            words_2W, ranked[row, pair] = language.ranked_pair(own, length, random)
            sets += [np.array([tokenizer.cls, *words, tokenizer.sep]) for words in words_2W.tolist()]
    flat = pad(sets, tokenizer.pad)
    ids, mask = (part.unflatten(0, (len(texts), -1)) for part in (flat.ids, flat.mask))
    return Batch(
        pad(inputs, tokenizer.pad), pad(labels, IGNORED).ids, Tokens(ids, mask), torch.from_numpy(ranked)
    )  # fmt: skip


def set_lengths(mean_words: float, pairs: int, longest: int, random: Generator) -> Ids:
    """Sample P lengths from a zero-truncated Poisson distribution, limited to `longest`.

    A Poisson variable counts the arrivals of a process up to time `mean_words`. The first arrival is sampled given
    that there is one; the number of later arrivals is Poisson distributed over the remaining time.
    """
    first = -np.log1p(random.random(pairs) * np.expm1(-mean_words))
    lengths: Ids = np.minimum(1 + random.poisson(np.maximum(0, mean_words - first)), longest)
    return lengths


class LanguageModel:
    """A text's unigram language model with Dirichlet smoothing: P(w|d) = (count(w, d) + mu P(w|C)) / (|d| + mu)."""

    def __init__(self, terms: TermCounts, tokenizer: Tokenizer, smoothing: float) -> None:
        self.smoothing, self.counts_V = smoothing, terms.occurrences.copy()
        self.counts_V[tokenizer.specials] = 0
        self.cumulative_V = np.cumsum(self.counts_V)

    def ranked_pair(self, text: Ids, length: int, random: Generator) -> tuple[Ids, bool]:
        """Sample two word sets of equal size [2, W], the likelier first; and return whether likelihoods differ."""
        words_2W = self.sample(text, (2, length), random)
        # Sorted, since floating-point sums depend on the order: equal sets must have equal sums.
        first, second = np.sort(self.log_probabilities(text, words_2W)).sum(1).tolist()
        return words_2W if first >= second else words_2W[::-1], first != second

    def sample(self, text: Ids, shape: tuple[int, ...], random: Generator) -> Ids:
        """Sample words from P(w|d): with probability |d| / (|d| + mu) from the text, else from the collection."""
        own = random.random(shape) * (len(text) + self.smoothing) < len(text)
        words: Ids = np.searchsorted(
            self.cumulative_V, random.integers(self.cumulative_V[-1], size=shape), side="right"
        )
        words[own] = random.choice(text, size=int(own.sum()))
        return words

    def log_probabilities(self, text: Ids, words: Ids) -> NDArray[np.float64]:
        """Return log P(w|d) of each word."""
        in_text = (words[..., None] == text).sum(-1)
        in_collection = self.counts_V[words] / self.cumulative_V[-1]
        smoothed = (in_text + self.smoothing * in_collection) / (len(text) + self.smoothing)
        log_probabilities: NDArray[np.float64] = np.log(smoothed)
        return log_probabilities


class Pretraining(nn.Module):
    """L = L_ROP + L_MLM."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.words_max_tokens)
        self.model, self.pooling, self.margin = initial.model, initial.pooling, settings.margin

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors, and the MLM and ranking losses: a text is compared only with its own word sets."""
        hidden_BLH = self.model.bert(batch.text.ids, batch.text.mask)
        texts_BH = pool(hidden_BLH, batch.text.mask, self.pooling)
        sets_BSH = self._sets(batch.sets).unflatten(0, (len(batch), -1))
        scores_BP2 = (sets_BSH * texts_BH[:, None]).sum(-1).unflatten(1, (-1, 2))
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.text_labels),
            "ranking": ranking_loss(scores_BP2[batch.ranked], self.margin),
        }

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return no losses: the objective has no contrast."""
        return {}

    def _sets(self, sets: Tokens) -> Tensor:
        ids, mask = sets.ids.flatten(0, 1), sets.mask.flatten(0, 1)
        return pool(self.model.bert(ids, mask), mask, self.pooling)


def ranking_loss(scores_N2: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, margin - p+ + p-), where p is the softmax of a pair's two scores; 0 without pairs."""
    likelier_N, other_N = scores_N2.float().softmax(-1).unbind(-1)
    return relu(margin - likelier_N + other_N).sum() / max(1, len(scores_N2))
