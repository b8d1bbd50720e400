"""CoT-MoTE: a contextual masked auto-encoder with one expert for queries and one for passages.

Queries are short questions, passages long statements: each kind is read by feed-forward layers of its own, while one
self-attention keeps both in one space (`models.retrievers.towers`). Both are pre-trained as in CoT-MAE: a shallow
decoder must write the query from one vector of the passage, and from one of the query itself. The vector is the
encoder's own (dense), or a mixture of word embeddings weighted by the text's lexical representation.

Ma et al., CoT-MoTE: Exploring ConTextual Masked Auto-Encoder Pre-training with Mixture-of-Textual-Experts for Passage
Retrieval, sections 3.1-3.2. How a lexical representation becomes one vector is from LexMAE (Shen et al. 2022).

Shape suffixes: B batch, L length of a text, H hidden, V vocabulary, N positions whose word is predicted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn.functional import pad as widened

from models.batch import Rows
from models.layers.bert import BertForMaskedLM
from models.layers.decoder import AutoRegressiveDecoder, shared
from models.losses import masked_lm_loss, recovery_loss
from models.masking import IGNORED, mask_words
from models.objective import Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_lengths, check_rates, crop_with_specials
from models.representation import Role, pool
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens, pad


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the paper's tables vary, and what it leaves open."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "pairs"
    counts_terms: ClassVar[bool] = False

    bottlenecks: list[Literal["dense", "lexical"]]
    """Which vectors of a text are decoded, each with a loss of its own."""
    lexical_bottleneck: Literal["l1", "softmax"] | None
    """`lexical` only: saturated weights over their sum, or a softmax of the logits, weigh the word embeddings."""
    switched: bool
    """Whether each kind is read by the other's tower (the paper's Table 4)."""
    query_target: Literal["query", "passage", "none"]
    """What is decoded from the query's vectors; from the passage's it is always the query."""
    mask_rate: float
    decoder_layers: int
    window: int
    """How many tokens, its own included, a position sees in addition to the vector: 1 or more."""
    max_tokens: int
    """The length of a passage with [CLS] and [SEP]; a longer one is cropped at both ends."""
    query_max_tokens: int

    def __post_init__(self) -> None:
        check_rates(mask_rate=self.mask_rate)
        check_lengths(max_tokens=self.max_tokens, query_max_tokens=self.query_max_tokens)
        if not self.bottlenecks or len(set(self.bottlenecks)) < len(self.bottlenecks):
            raise ValueError("bottlenecks: expected dense, lexical or both, each once")
        if ("lexical" in self.bottlenecks) != (self.lexical_bottleneck is not None):
            raise ValueError("lexical_bottleneck: expected l1 or softmax where bottlenecks have lexical, else null")
        if self.decoder_layers < 1:
            raise ValueError("decoder_layers: expected 1 or more")
        if self.window < 1:
            raise ValueError("window: expected 1 or more")


@dataclass(frozen=True)
class Masked(Rows):
    """Masked texts with the ids to recover; labels are IGNORED at all other positions."""

    tokens: Tokens
    labels: Tensor

    def whole(self) -> tuple[Tokens, Tensor]:
        """The texts before masking, and each of their tokens as a label."""
        ids_BL = torch.where(self.labels == IGNORED, self.tokens.ids, self.labels)
        return Tokens(ids_BL, self.tokens.mask), torch.where(self.tokens.mask, ids_BL, IGNORED)


@dataclass(frozen=True)
class Batch(Rows):
    """Pairs of a passage and a query, padded each for itself."""

    passage: Masked
    query: Masked
    targets: Mapping[Role, Role]
    """What is decoded from the vectors of a kind of text; a kind that is not named has no decoder."""

    def texts(self, role: Role) -> Masked:
        """The texts of a kind."""
        return self.query if role == "query" else self.passage

    def num_terms(self, loss: str) -> int:
        """The number of positions whose token a loss predicts; the decoder does not predict the first, [CLS]."""
        task, role = loss.split("_")[:2]
        source: Role = "query" if role == "query" else "passage"
        if task == "mlm":
            return int((self.texts(source).labels != IGNORED).sum())
        return int(self.texts(self.targets[source]).tokens.mask[:, 1:].sum())


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: Generator) -> Batch:
    """Crop, add special tokens, mask whole words and pad: passages, then their queries."""

    def masked(rows: Sequence[Sequence[int]], longest: int) -> Masked:
        whole = [crop_with_specials(ids, longest, tokenizer, random) for ids in rows]
        inputs, labels = mask_words(whole, tokenizer, settings.mask_rate, random)
        return Masked(pad(inputs, tokenizer.pad), pad(labels, IGNORED).ids)

    targets: dict[Role, Role] = {"passage": "query"}
    if settings.query_target != "none":
        targets["query"] = settings.query_target
    passages, queries = masked(raw.texts, settings.max_tokens), masked(raw.contexts, settings.query_max_tokens)
    return Batch(passages, queries, targets)


class Pretraining(nn.Module):
    """L = L_mlm(query) + L_mlm(passage) + L_clm of every vector that is decoded (equations 11 and 12).

    One decoder reads all vectors. Its embeddings and head are those of the tower that made the vector: separate
    towers have nothing in common but the decoder's own layers, and a mixture has only one of each anyway.
    """

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.query_max_tokens)
        if settings.switched and initial.encoder.query is initial.encoder.passage:
            raise ValueError("switched: expected two towers to change places, found one")
        self.model, self.encoder, self.settings, self.pooling = (
            initial.model,
            initial.encoder,
            settings,
            initial.pooling,
        )
        self.decoder = AutoRegressiveDecoder(initial.model, num_blocks=settings.decoder_layers, window=settings.window)
        self.query_decoder = copy.copy(self.decoder)  # with the same layers
        self.query_decoder.vocabulary, self.query_decoder.embeddings = shared(initial.encoder.query)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """All losses are local to a chunk; no vectors are compared."""
        return (), {**self.losses("query", batch), **self.losses("passage", batch)}

    def compare(self, vectors: Vectors, batch: Batch) -> Losses:
        """No losses: the objective has no contrast."""
        return {}

    def losses(self, role: Role, batch: Batch) -> Losses:
        """What the texts of a role have to recover, and what their vectors have to tell the decoder."""
        by_query = (role == "query") != self.settings.switched
        tower, decoder = (self.encoder.query, self.query_decoder) if by_query else (self.model, self.decoder)
        text, views = batch.texts(role), self.settings.bottlenecks if role in batch.targets else []
        hidden_BLH = tower.bert(text.tokens.ids, text.tokens.mask)
        vectors: dict[str, Tensor] = {}
        if "dense" in views:
            vectors["dense"] = pool(hidden_BLH, text.tokens.mask, self.pooling)
        if "lexical" in views:
            mlm, vectors["lexical"] = self.recovered(tower, hidden_BLH, text)
        else:
            mlm = recovery_loss(tower.vocabulary, hidden_BLH, text.labels)
        decoded = {
            f"decode_{role}_{view}": masked_lm_loss(*decoder(vectors_BH, *batch.texts(batch.targets[role]).whole()))
            for view, vectors_BH in vectors.items()
        }
        return {f"mlm_{role}": mlm, **decoded}

    def recovered(self, tower: BertForMaskedLM, hidden_BLH: Tensor, text: Masked) -> tuple[Tensor, Tensor]:
        """The masked-language-model loss and the lexical vectors [B, H], from logits that are computed once."""
        read_BL = between_specials(text.tokens.mask)
        logits_NV, labels_N = tower.vocabulary(hidden_BLH[read_BL]), text.labels[read_BL]
        labelled_N = labels_N != IGNORED
        strongest_BV = maxima(logits_NV, read_BL.sum(1))
        vectors_BH = weighted_words(
            strongest_BV, tower.bert.embeddings.word_embeddings.weight, self.settings.lexical_bottleneck
        )
        return masked_lm_loss(logits_NV[labelled_N], labels_N[labelled_N]), vectors_BH


def between_specials(mask_BL: Tensor) -> Tensor:
    """Where there is a token that is neither the first, [CLS], nor the last, [SEP]; a hidden one, [MASK], counts."""
    return widened(mask_BL[:, 2:], (1, 1))


def maxima(logits_NV: Tensor, counts_B: Tensor) -> Tensor:
    """Each word's greatest logit in each text [B, V], whose positions follow each other; 0 for a text without any."""
    texts = logits_NV.split(counts_B.tolist())
    return torch.stack([each.amax(0) if len(each) else each.new_zeros(each.shape[1]) for each in texts])


def weighted_words(logits_BV: Tensor, embeddings_VH: Tensor, weights: str | None) -> Tensor:
    """A lexical representation as one vector [B, H]: the mean of all words' embeddings, by their weights in the text.

    The weights are `l1`, S / (sum of S + 1e-4) with S = log(1 + ReLU(logits)) (equation 4), or `softmax`. No
    gradient goes into the embeddings here, so the text can only choose among words as they are.
    """
    logits_BV = logits_BV.float()
    if weights == "softmax":
        return logits_BV.softmax(-1) @ embeddings_VH.detach()
    lexical_BV = logits_BV.relu().log1p()
    return lexical_BV / (lexical_BV.sum(-1, keepdim=True) + 1e-4) @ embeddings_VH.detach()
