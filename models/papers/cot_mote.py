"""CoT-MoTE: a contextual masked auto-encoder with one expert for queries and one for passages.

Queries and passages have their own feed-forward layers and share self-attention, which keeps them in one vector space
(`models.retrievers.towers`). Both are pre-trained as in CoT-MAE: a shallow decoder generates the query from a vector
of the passage, and from a vector of the query. The vector is the encoder's pooled output (dense), or the mean of word
embeddings weighted by the text's lexical representation.

Ma et al., CoT-MoTE: Exploring ConTextual Masked Auto-Encoder Pre-training with Mixture-of-Textual-Experts for Passage
Retrieval, sections 3.1-3.2. How a lexical representation becomes one vector is from LexMAE (Shen et al. 2022).

Shape suffixes: B batch, L length of a text, H hidden, V vocabulary, N positions whose token is predicted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import pad as widened

from models.batch import HostProperty, Rows, flat_positions
from models.layers.backbone import Backbone
from models.layers.decoder import AutoRegressiveDecoder, shared
from models.layers.max_logits import max_of_logits
from models.layers.unpadding import among
from models.losses import masked_lm_loss, recovery_loss
from models.masked_texts import MaskedTexts
from models.objective import LocalObjective, Losses, Vectors
from models.pretraining import Initialisation, RawBatch, Reads, check_decoder_width, check_lengths, check_rates
from models.representation import Role, pool
from models.row_random import RowRandom
from models.settings import VALIDATED, omitted_at
from models.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that the paper's tables vary, and those that it does not state."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED
    reads: ClassVar[Reads] = "pairs"
    counts_terms: ClassVar[bool] = False

    bottlenecks: list[Literal["dense", "lexical"]]
    """The vectors of a text that are decoded, each with its own loss."""
    lexical_bottleneck: Literal["l1", "softmax"] | None
    """`lexical` only: word embeddings are weighted by normalised saturated weights (l1) or the logits' softmax."""
    switched: bool
    """Whether the query encoder reads passages and the passage encoder reads queries (the paper's Table 4)."""
    query_target: Literal["query", "passage", "none"]
    """The text decoded from the query's vectors; the passage's vectors always decode the query."""
    mask_rate: float
    decoder_layers: int
    window: int
    """The number of tokens that a position sees in addition to the vector, its own included; 1 or more."""
    decoder_width: Annotated[int | None, omitted_at(None)] = None
    """The inner size of the decoder's MLPs, 4 times the hidden size in GPT-2; null for the backbone's."""
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
        check_decoder_width(self.decoder_width)
        if self.window < 1:
            raise ValueError("window: expected 1 or more")


@dataclass(frozen=True)
class Masked(MaskedTexts):
    """Masked texts with what the decoder reads of them."""

    @HostProperty
    def content(self) -> Tensor:
        """The flat positions [N] of all tokens but each text's first, [CLS], and last, [SEP]."""
        return flat_positions(between_specials(self.tokens.mask))

    @HostProperty
    def after_cls(self) -> Tensor:
        """The flat positions [N] of all tokens but [CLS]."""
        return self.tokens.after_first()


@dataclass(frozen=True)
class Batch(Rows):
    """Pairs of a passage and a query; passages and queries are padded separately."""

    passage: Masked
    query: Masked
    targets: Mapping[Role, Role]
    """The role of the text decoded from the vectors of a role; the vectors of a missing role are not decoded."""

    def texts(self, role: Role) -> Masked:
        """Return the texts of a role."""
        return self.query if role == "query" else self.passage

    def num_terms(self, loss: str) -> int:
        """Return the number of positions whose token a loss predicts; the decoder never predicts [CLS].

        A loss is named mlm_ROLE or decode_ROLE_BOTTLENECK, by the role whose vector or states it reads.
        """
        task, role = loss.split("_")[:2]
        source: Role = "query" if role == "query" else "passage"
        if task == "mlm":
            return len(self.texts(source).labelled)
        return len(self.texts(self.targets[source]).after_cls)


def make_batch(raw: RawBatch, tokenizer: Tokenizer, settings: Settings, random: RowRandom) -> Batch:
    """Crop the texts, add special tokens, mask whole words and pad: first all passages, then their queries."""
    targets: dict[Role, Role] = {"passage": "query"}
    if settings.query_target != "none":
        targets["query"] = settings.query_target
    passages = Masked.make(raw.texts, settings.max_tokens, settings.mask_rate, tokenizer, random)
    queries = Masked.make(raw.contexts, settings.query_max_tokens, settings.mask_rate, tokenizer, random)
    return Batch(passages, queries, targets)


class Pretraining(LocalObjective):
    """L = L_mlm(query) + L_mlm(passage) + L_clm of every decoded vector (equations 11 and 12).

    The decoder's layers are shared by all vectors. Its embeddings and output head are those of the encoder that
    computed the vector. With separate encoders these differ; a mixture of experts has only one of each.
    """

    def __init__(self, initial: Initialisation, settings: Settings) -> None:
        super().__init__()
        initial.check_positions(settings.max_tokens, settings.query_max_tokens)
        if settings.switched and initial.encoder.query is initial.encoder.passage:
            raise ValueError("switched: expected separate query and passage encoders, found one encoder")
        if settings.lexical_bottleneck:
            initial.model.check_width("lexical_bottleneck")
        self.model, self.encoder, self.pooling = initial.model, initial.encoder, initial.pooling
        self.settings = settings
        self.decoder = AutoRegressiveDecoder(
            initial.model,
            num_blocks=settings.decoder_layers,
            window=settings.window,
            width=settings.decoder_width,
            max_tokens=max(settings.max_tokens, settings.query_max_tokens),
        )
        # A shallow copy: both have the same layers as submodules, and each the vocabulary and embeddings of an encoder,
        # which are functions and no submodules.
        self.query_decoder = copy.copy(self.decoder)
        self.query_decoder.vocabulary, self.query_decoder.embeddings = shared(initial.encoder.query)

    def encode(self, batch: Batch) -> tuple[Vectors, Losses]:
        """Return no vectors, and the MLM and decoding losses of queries and passages."""
        return (), {**self.losses("query", batch), **self.losses("passage", batch)}

    def losses(self, role: Role, batch: Batch) -> Losses:
        """Return the MLM loss of the texts of a role, and the decoding loss of each of their vectors."""
        by_query = (role == "query") != self.settings.switched
        encoder, decoder = (self.encoder.query, self.query_decoder) if by_query else (self.model, self.decoder)
        text, views = batch.texts(role), self.settings.bottlenecks if role in batch.targets else []
        hidden_BLH = encoder(text.tokens)
        vectors: dict[str, Tensor] = {}
        if "dense" in views:
            vectors["dense"] = pool(hidden_BLH, text.tokens.mask, self.pooling)
        if "lexical" in views:
            mlm, vectors["lexical"] = self.mlm_and_lexical(encoder, hidden_BLH, text)
        else:
            mlm = recovery_loss(encoder.vocabulary, hidden_BLH, text.labels, text.labelled)
        losses = {f"mlm_{role}": mlm}
        for view, vectors_BH in vectors.items():
            decoded = batch.texts(batch.targets[role])
            target = decoded.unmasked()
            losses[f"decode_{role}_{view}"] = masked_lm_loss(
                *decoder(vectors_BH, target, target.ids, decoded.after_cls)
            )
        return losses

    def mlm_and_lexical(self, encoder: Backbone, hidden_BLH: Tensor, text: Masked) -> tuple[Tensor, Tensor]:
        """Return the MLM loss and the lexical vectors [B, H]; both need the same logits, computed once."""
        logits_NV = encoder.vocabulary(hidden_BLH.flatten(0, 1).index_select(0, text.content))
        max_logits_BV = max_of_logits(logits_NV, between_specials(text.tokens.mask))
        vectors_BH = weighted_words(max_logits_BV, encoder.words, self.settings.lexical_bottleneck)
        labelled_logits = logits_NV.index_select(0, among(text.content, text.labelled))
        return masked_lm_loss(labelled_logits, text.labels.flatten().index_select(0, text.labelled)), vectors_BH


def between_specials(mask_BL: Tensor) -> Tensor:
    """Return where a real token is neither the first, [CLS], nor the last, [SEP]; [MASK] is included; [B, L]."""
    return widened(mask_BL[:, 2:], (1, 1))


def weighted_words(logits_BV: Tensor, embeddings_VH: Tensor, weights: str | None) -> Tensor:
    """Return a lexical representation as one vector [B, H]: the weighted mean of all word embeddings.

    The weights are `l1`, S / (sum of S + 1e-4) with S = log(1 + ReLU(logits)) (equation 4), or `softmax`. The
    embeddings receive no gradient, as in LexMAE: only the weights are learned.
    """
    logits_BV = logits_BV.float()
    if weights == "softmax":
        return logits_BV.softmax(-1) @ embeddings_VH.detach()
    lexical_BV = logits_BV.relu().log1p()
    return lexical_BV / (lexical_BV.sum(-1, keepdim=True) + 1e-4) @ embeddings_VH.detach()
