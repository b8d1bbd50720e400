"""PROP: predict which of two word sets represents a text better.

The query-likelihood model treats a query as words sampled from its document. Pairs of word sets are sampled from a
text's language model, and the model learns to rank the likelier set of a pair first. Here it is a bi-encoder, CPDAE's
baseline: word sets and texts are encoded separately.

Ma et al., PROP: Pre-training with Representative Words Prediction for Ad-hoc Retrieval, section 3. The bi-encoder is
mentioned and not described by Ma et al., A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for
Dense Retrieval, section 4.1.2; its score is the dot product of fine-tuning.

Shape suffixes: B texts, L length of a text, P pairs of sets per text, S = 2P sets per text, W words of a set, H hidden,
V vocabulary, N selected tokens, pairs or sampled words; a digit is a size, such as 2 for the sets of a pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import relu

from models.batch import HostProperty, Rows, flat_positions
from models.losses import recovery_loss
from models.masking import IGNORED, mask_tokens
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, TermCounts, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom, as_integers
from models.settings import VALIDATED
from models.texts import Ids, Texts, crop_with_specials
from models.tokens import Tokenizer, Tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sampling of word sets, the margin of the ranking loss, and the length limits."""

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

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.text_labels != IGNORED)

    @HostProperty
    def with_target(self) -> Tensor:
        """The indices [N] of ranked pairs among all pairs of the batch."""
        return flat_positions(self.ranked)

    def num_terms(self, loss: str) -> int:
        """Return the number of masked tokens for `mlm`, and of ranked pairs for `ranking`."""
        return len(self.labelled if loss == "mlm" else self.with_target)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, mask each token on its own as in BERT, and sample word sets from the unmasked crop's language model."""
    if raw.terms is None:
        raise ValueError("sampling word sets needs term counts, found none")
    language = LanguageModel(raw.terms, tokenizer, settings.smoothing)
    texts = crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    inputs, labels = mask_tokens(texts, tokenizer, settings.mask_rate, random)
    longest = settings.words_max_tokens - 2
    lengths_BP = set_lengths(settings.mean_words, random.uniform(len(texts.ids), settings.pairs), longest)
    own = OwnWords(texts, tokenizer)
    bits_BN = random.bits(len(texts.ids), settings.pairs * 2 * longest)
    words_BP2W = language.sample(own, bits_BN).reshape(len(texts.ids), settings.pairs, 2, longest)
    words_BP2W, ranked_BP = language.ranked_pairs(own, words_BP2W, lengths_BP)
    return Batch(
        texts.tokens(inputs), torch.from_numpy(labels), word_sets(words_BP2W, lengths_BP, tokenizer),
        torch.from_numpy(ranked_BP),
    )  # fmt: skip


def word_sets(words_BP2W: Ids, lengths_BP: Ids, tokenizer: Tokenizer) -> Tokens:
    """Return the first words of each set, as many as its length, with special tokens and padding [B, 2P, W + 2]."""
    longest = int(lengths_BP.max())
    batch, pairs = lengths_BP.shape
    positions, lengths_BS1 = np.arange(longest + 2), lengths_BP.repeat(2, axis=1)[..., None]
    ids_BSW = np.full((batch, 2 * pairs, longest + 2), tokenizer.cls)
    ids_BSW[..., 1:-1] = words_BP2W[..., :longest].reshape(batch, 2 * pairs, longest)
    ids_BSW = np.where(
        positions <= lengths_BS1, ids_BSW, np.where(positions == lengths_BS1 + 1, tokenizer.sep, tokenizer.pad)
    )
    return Tokens(torch.from_numpy(ids_BSW), torch.from_numpy(positions < lengths_BS1 + 2))


def set_lengths(mean_words: float, uniform: NDArray[np.float64], longest: int) -> Ids:
    """Return lengths of a zero-truncated Poisson distribution, limited to `longest`, by inverting its distribution."""
    numbers = np.arange(1, longest)
    log_masses = (
        numbers * math.log(mean_words) - mean_words - np.cumsum(np.log(numbers)) - math.log(-math.expm1(-mean_words))
    )
    lengths: Ids = 1 + np.searchsorted(np.cumsum(np.exp(log_masses)), uniform, side="right")
    return lengths


class OwnWords:
    """The words of texts without special tokens, for sampling and counting."""

    def __init__(self, texts: Texts, tokenizer: Tokenizer) -> None:
        own_BL = texts.content & ~tokenizer.is_special[texts.ids]
        self.lengths_B = own_BL.sum(1)
        self._words = texts.ids[own_BL]
        self._ends_B, self._size = np.cumsum(self.lengths_B), tokenizer.vocab_size
        rows = np.repeat(np.arange(len(own_BL)), self.lengths_B)
        self._distinct, self._counts = np.unique(rows * self._size + self._words, return_counts=True)

    def take(self, rows: Ids, positions: Ids) -> Ids:
        """Return the words at positions of texts; the positions of an empty text are arbitrary."""
        if not len(self._words):
            return np.zeros_like(positions)
        indices = np.minimum(self._ends_B[rows] - self.lengths_B[rows] + positions, len(self._words) - 1)
        words: Ids = self._words[indices]
        return words

    def counts(self, rows: Ids, words: Ids) -> Ids:
        """Return how often words occur in texts."""
        if not len(self._words):
            return np.zeros_like(words)
        keys = rows * self._size + words
        indices = np.minimum(np.searchsorted(self._distinct, keys), len(self._distinct) - 1)
        counts: Ids = np.where(self._distinct[indices] == keys, self._counts[indices], 0)
        return counts


class LanguageModel:
    """A text's unigram language model with Dirichlet smoothing: P(w|d) = (count(w, d) + mu P(w|C)) / (|d| + mu)."""

    def __init__(self, terms: TermCounts, tokenizer: Tokenizer, smoothing: float) -> None:
        self.smoothing, self.counts_V = smoothing, terms.collection_frequency.copy()
        self.counts_V[tokenizer.specials] = 0
        self.cumulative_V = np.cumsum(self.counts_V)

    def sample(self, own: OwnWords, bits_BN: NDArray[np.uint64]) -> Ids:
        """Sample N words from each P(w|d): with probability |d| / (|d| + mu) from the text, else from the collection.

        Of each number the lower half chooses between the two, and the upper half the word.
        """
        rows_BN = np.broadcast_to(np.arange(len(bits_BN))[:, None], bits_BN.shape)
        lengths_BN = own.lengths_B[rows_BN]
        choice_BN = (bits_BN & np.uint64(2**32 - 1)) * 2.0**-32
        from_text_BN = choice_BN * (lengths_BN + self.smoothing) < lengths_BN
        in_collection_BN = ((bits_BN >> np.uint64(32)) * (2.0**-32 * float(self.cumulative_V[-1]))).astype(np.int64)
        return np.where(
            from_text_BN, own.take(rows_BN, as_integers(bits_BN, lengths_BN)),
            np.searchsorted(self.cumulative_V, in_collection_BN, side="right"),
        )  # fmt: skip

    def ranked_pairs(self, own: OwnWords, words_BP2W: Ids, lengths_BP: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Return the pairs of sets, the likelier set of each first, and whether their likelihoods differ [B, P].

        Only the first words of a set count, as many as its length.
        """
        rows = np.broadcast_to(np.arange(len(words_BP2W))[:, None, None, None], words_BP2W.shape)
        logs = self.log_probabilities(own, rows, words_BP2W)
        logs = np.where(np.arange(words_BP2W.shape[-1]) < lengths_BP[..., None, None], logs, 0.0)
        # Sorted, since floating-point sums depend on the order: equal sets must have equal sums.
        sums_BP2 = np.sort(logs).sum(-1)
        swapped_BP = sums_BP2[..., 0] < sums_BP2[..., 1]
        ranked = np.where(swapped_BP[..., None, None], words_BP2W[:, :, ::-1], words_BP2W)
        return ranked, sums_BP2[..., 0] != sums_BP2[..., 1]

    def log_probabilities(self, own: OwnWords, rows: Ids, words: Ids) -> NDArray[np.float64]:
        """Return log P(w|d) of words in texts."""
        in_collection = self.counts_V[words] / self.cumulative_V[-1]
        smoothed = (own.counts(rows, words) + self.smoothing * in_collection) / (own.lengths_B[rows] + self.smoothing)
        log_probabilities: NDArray[np.float64] = np.log(smoothed)
        return log_probabilities


class Pretraining(LocalObjective):
    """L = L_ROP + L_MLM."""

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.words_max_tokens)
        self.model, self.pooling, self.margin = initial.model, initial.pooling, settings.margin

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors, and the MLM and ranking losses: a text is compared only with its own word sets."""
        hidden_BLH = self.model(batch.text)
        texts_BH = pool(hidden_BLH, batch.text.mask, self.pooling)
        sets_BSH = self._sets(batch.sets).unflatten(0, (len(batch), -1))
        scores_N2 = (sets_BSH * texts_BH[:, None]).sum(-1).view(-1, 2).index_select(0, batch.with_target)
        return (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_BLH, batch.text_labels, batch.labelled),
            "ranking": ranking_loss(scores_N2, self.margin),
        }

    def _sets(self, sets: Tokens) -> Tensor:
        flat = sets.flattened()
        return pool(self.model(flat), flat.mask, self.pooling)


def ranking_loss(scores_N2: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, margin - p+ + p-), where p is the softmax of a pair's two scores; 0 without pairs."""
    likelier_N, other_N = scores_N2.float().softmax(-1).unbind(-1)
    return relu(margin - likelier_N + other_N).sum() / max(1, len(scores_N2))
