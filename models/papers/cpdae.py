"""CPDAE: a discriminative auto-encoder, pre-trained by contrast.

Two masked views of a text are encoded. A decoder of two linear layers predicts from each vector which words the text
has, all at once, so no earlier words help. Frequent words are easy to predict and hardly discriminate between texts:
a contrastive loss therefore makes the word distributions of a text's two views similar and those of other texts
dissimilar.

Ma et al., A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval, section 3.

Shape suffixes: B texts, L length, H hidden, V vocabulary, W distinct words of a text, N = 2B views, where rows 2k and
2k + 1 are views of one text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize, softplus
from torch.special import entr
from torch.utils.checkpoint import checkpoint

from models.batch import HostProperty, Rows, flat_positions
from models.layers.backbone import Backbone
from models.layers.bert_layers import Transform, initialise
from models.losses import partner_losses, recovery_loss
from models.masking import IGNORED, mask_tokens
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, TermCounts, check_lengths, check_rates
from models.representation import pool
from models.row_random import RowRandom
from models.settings import VALIDATED
from models.texts import Ids, Texts, crop_with_specials
from models.tokens import Tokenizer, Tokens

NUMBERS_AT_ONCE = 2**22
"""The number of elements of pairwise mixtures of word distributions that are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that the rows of the paper's tables vary, and those that it does not state."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "texts"
    counts_terms: ClassVar[bool] = True

    mask_rate: float
    weighting: Literal["none", "idf"]
    """The weights of the words in the reconstruction loss; `idf` is the ablation IDF-REC."""
    contrast: Literal["none", "words", "hidden"]
    """The contrasted representations: word distributions (CPDAE) or the vectors (CPDAE_R)."""
    contrast_weight: float | None
    """lambda; null for contrast none, as are the next three."""
    contrast_temperature: float | None
    anchors: Literal["first", "both"] | None
    """The views used as anchors of the contrast; the printed sum has one view per text."""
    contrast_reduction: Literal["sum", "mean"] | None
    reconstruction_reduction: Literal["sum", "per_positive", "mean"]
    """Over the vocabulary: the printed sum, or the sum divided by the number of a text's distinct words, or by V."""
    max_tokens: int

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens)
        given = (self.contrast_weight, self.contrast_temperature, self.anchors, self.contrast_reduction)
        names = "contrast_weight, contrast_temperature, anchors and contrast_reduction"
        if self.contrast == "none" and any(value is not None for value in given):
            raise ValueError(f"contrast none: expected null for {names}")
        if self.contrast != "none" and None in given:
            raise ValueError(f"contrast {self.contrast}: expected values for {names}, found null")
        if any(value is not None and value <= 0 for value in (self.contrast_weight, self.contrast_temperature)):
            raise ValueError("contrast_weight and contrast_temperature: expected numbers above 0")


@dataclass(frozen=True)
class Batch(Rows):
    """Two views of each text [B, 2, L], the ids to recover in them, and each text's distinct words [B, W].

    Labels are IGNORED at unmasked positions; `words` is padded with IGNORED.
    """

    views: Tokens
    labels: Tensor
    words: Tensor

    @HostProperty
    def labelled(self) -> Tensor:
        """The flat positions [N] of masked tokens."""
        return flat_positions(self.labels != IGNORED)

    def num_terms(self, loss: str) -> int:
        """Return the number of masked tokens for `mlm`, and of texts for `reconstruction`."""
        return len(self.labelled if loss == "mlm" else self)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop, mask the crop twice, each token on its own as in BERT, and pad. Special tokens are not counted as words."""
    texts = crop_with_specials(raw.texts, settings.max_tokens, tokenizer, random)
    views = texts.twice()
    inputs, labels = mask_tokens(views, tokenizer, settings.mask_rate, random.times(2))
    tokens, labels_NL = views.tokens(inputs), torch.from_numpy(labels)
    ids_B2L, mask_B2L, labels_B2L = (rows.unflatten(0, (-1, 2)) for rows in (tokens.ids, tokens.mask, labels_NL))
    return Batch(Tokens(ids_B2L, mask_B2L), labels_B2L, torch.from_numpy(distinct_words(texts, tokenizer)))


def distinct_words(texts: Texts, tokenizer: Tokenizer) -> Ids:
    """Return the distinct ids of each text without special tokens, in ascending order, padded with IGNORED [B, W]."""
    special = tokenizer.vocab_size  # sorted behind all words
    sorted_BL = np.sort(np.where(tokenizer.is_special[texts.ids], special, texts.ids), axis=1)
    new_BL = sorted_BL != special
    new_BL[:, 1:] &= sorted_BL[:, 1:] != sorted_BL[:, :-1]
    counts_B = new_BL.sum(1)
    words_BW = np.full((len(counts_B), counts_B.max()), IGNORED)
    words_BW[np.arange(words_BW.shape[1]) < counts_B[:, None]] = sorted_BL[new_BL]
    return words_BW


class Pretraining(nn.Module):
    """L = L_REC + L_MLM + lambda L_CL (equation 6)."""

    weights: Tensor

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens)
        if initial.terms is None:
            raise ValueError("the decoder's initialisation and IDF weights need term counts, found none")
        self.model, self.pooling, self.settings = initial.model, initial.pooling, settings
        initial.model.check_width("objective cpdae")
        self.decoder = Decoder(initial.model, initial.terms)
        size = initial.model.config.vocab_size
        weights_V = idf_weights(initial.terms, size) if settings.weighting == "idf" else torch.ones(size)
        self.register_buffer("weights", weights_V, persistent=False)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return the vectors [N, H] if there is a contrast, and the MLM and reconstruction losses."""
        hidden_NLH = self.model(views := batch.views.flattened())
        vectors_NH = pool(hidden_NLH, views.mask, self.pooling)
        words_NW = batch.words.repeat_interleave(2, 0)
        losses_N = reconstruction_losses(self.decoder(vectors_NH), words_NW, self.weights)
        if self.settings.reconstruction_reduction == "per_positive":
            losses_N = losses_N / (words_NW != IGNORED).sum(1).clamp(min=1)
        if self.settings.reconstruction_reduction == "mean":
            losses_N = losses_N / len(self.weights)
        return (vectors_NH,) if self.settings.contrast != "none" else (), {
            "mlm": recovery_loss(self.model.vocabulary, hidden_NLH, batch.labels, batch.labelled),
            "reconstruction": losses_N.mean(),
        }

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """Return lambda L_CL (equation 5).

        Word distributions are decoded again from the vectors: the vectors of a batch are small, distributions are not.
        """
        weight, temperature = self.settings.contrast_weight, self.settings.contrast_temperature
        if weight is None or temperature is None:
            return {}
        (vectors_NH,) = vectors
        if self.settings.contrast == "words":
            scores_NN = -divergences(self.decoder(vectors_NH))
        else:
            units_NH = normalize(vectors_NH.float(), dim=1)
            scores_NN = units_NH @ units_NH.T
        losses = partner_losses(scores_NN, temperature=temperature)
        losses = losses[::2] if self.settings.anchors == "first" else losses
        return {"contrast": weight * (losses.sum() if self.settings.contrast_reduction == "sum" else losses.mean())}


class Decoder(nn.Module):
    """z = W2 LN(GELU(W1 h + b1)) + b2 (equation 2): a logit for each token of the vocabulary.

    The paper states neither width nor initialisation. Here the width is H, W1 is initialised as in BERT, W2 is a copy
    of the word embeddings, and b2 is the logit of a token's mean probability of being in a text: with b2 = 0, V terms
    near log 2 would dominate the first steps.
    """

    def __init__(self, model: Backbone, terms: TermCounts) -> None:
        super().__init__()
        config, words = model.config, model.words
        self.transform = Transform(config)
        self.apply(lambda module: initialise(module, config.initializer_range))
        self.vocabulary = nn.Linear(config.hidden_size, config.vocab_size)
        chance = float(terms.document_frequency.sum()) / terms.num_texts / config.vocab_size
        with torch.no_grad():
            self.vocabulary.weight.copy_(words)
            self.vocabulary.bias.fill_(math.log(chance / (1 - chance)))

    def forward(self, vectors_NH: Tensor) -> Tensor:
        """Return logits [N, V], always in float32, since the loss sums thousands of small terms."""
        with torch.autocast(vectors_NH.device.type, enabled=False):
            logits_NV: Tensor = self.vocabulary(self.transform(vectors_NH.float()))
        return logits_NV


def idf_weights(terms: TermCounts, size: int) -> Tensor:
    """Return log((1 + texts) / texts that have v) for each token v, scaled to mean 1 over the tokens that occur; [V].

    The added 1 keeps the weight of a token of all texts above 0. A token of no text counts as occurring in one.
    """
    frequency_V = np.zeros(size)
    frequency_V[: len(terms.document_frequency)] = terms.document_frequency
    idf_V = np.log((1 + terms.num_texts) / np.maximum(frequency_V, 1))
    return torch.tensor(idf_V / idf_V[frequency_V > 0].mean(), dtype=torch.float32)


def reconstruction_losses(logits_NV: Tensor, words_NW: Tensor, weights_V: Tensor) -> Tensor:
    """Return the binary cross-entropy summed over the vocabulary [N] (equation 4; its second logarithm is of 1 - z^).

    -y log z^ - (1 - y) log(1 - z^) = softplus(z) - y z, so the second term is a sum over the text's words only.
    """
    real_NW = words_NW != IGNORED
    words_NW = words_NW.clamp(min=0)
    positives_NW = logits_NV.gather(1, words_NW) * weights_V[words_NW] * real_NW
    return (softplus(logits_NV) * weights_V).sum(1) - positives_NW.sum(1)


def divergences(logits_NV: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergences of all pairs of word distributions z~ = z^ / sum z^; [N, N], in [0, log 2].

    JS(p, q) = H((p + q) / 2) - H(p) / 2 - H(q) / 2. Only the first term depends on pairs, and its N x N x V elements
    do not fit into memory: it is computed for a block of rows at a time, for the upper half of the symmetric matrix,
    and recomputed in the backward pass.
    """
    logs_NV = logsigmoid(logits_NV)
    shares_NV = (logs_NV - logs_NV.logsumexp(1, keepdim=True)).exp()
    shares_NV = shares_NV.clamp(min=torch.finfo(shares_NV.dtype).tiny)  # the entropy has no gradient at 0
    own_N, size = entropies(shares_NV), len(shares_NV)
    mixed_NN, rows = shares_NV.new_zeros(size, size), max(1, NUMBERS_AT_ONCE // shares_NV.numel())
    for first in range(0, size, rows):
        block_RV, others_KV = shares_NV[first : first + rows], shares_NV[first:]
        mixed_NN[first : first + rows, first:] = checkpoint(
            mixed_entropies, block_RV, others_KV, use_reentrant=False, preserve_rng_state=False
        )
    return mixed_NN.triu() + mixed_NN.triu(1).T - (own_N[:, None] + own_N) / 2


def mixed_entropies(block_RV: Tensor, others_KV: Tensor) -> Tensor:
    """Return H((p + q) / 2) of all pairs of a block's distributions p and others q; [R, K]."""
    return entropies((block_RV[:, None] + others_KV) / 2)


def entropies(shares: Tensor) -> Tensor:
    """Return H(p) = -sum p log p of the distributions along the last axis."""
    total: Tensor = entr(shares).sum(-1)
    return total
