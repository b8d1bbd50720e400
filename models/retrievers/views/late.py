"""The late-interaction view: a vector per token; each query token is matched with its most similar passage token.

MaxSim is s(q, p) = sum_i max_j <e_i, e_j>, with e = W h. Khattab and Zaharia, ColBERT, section 3: normalised vectors,
queries padded with [MASK], punctuation of passages skipped. CAME, section 3.2.2, equation 5: neither. Gao et al., COIL,
section 3: a query token is compared only with equal WordPiece tokens of the passage, and contributes 0 if there is none
or if all products are negative.

Shape suffixes: B batch, L length, H hidden, D dimension; Q queries of I tokens, P passages of J tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from models.batch import Rows, first_positions, known
from models.layers.backbone import Backbone
from models.layers.bert_config import BertConfig
from models.representation import Representation, Role, inner_products
from models.settings import VALIDATED, check_weight, omitted_at
from models.tokens import Tokenizer, Tokens

MAX_ELEMENTS = 2**26
"""The number of token similarities that are in memory at a time: 256 MB."""

MARKERS: dict[Role, str] = {"query": "[unused0]", "passage": "[unused1]"}
"""[Q] and [D]: tokens that BERT's vocabulary has, but its training never used."""


@dataclass(frozen=True, kw_only=True)
class LateSettings:
    """The settings in which ColBERT, COIL and CAME's local expert differ."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dim: int
    """D, the dimension to which a matrix projects the hidden states of queries and passages."""
    bias: bool
    normalise: bool
    """Whether vectors are normalised to length 1."""
    exact_match: bool
    """Whether only equal WordPiece tokens are compared, with similarities of at least 0 (COIL)."""
    skip_punctuation: bool
    """Whether punctuation of passages is skipped."""
    query_masks: int | None
    """The length to which queries are padded with [MASK], which is compared but not attended to (ColBERT)."""
    use_cls: bool
    use_sep: bool
    """Whether [CLS] and [SEP] are compared."""
    weight: float = 1.0
    """The weight of the view's scores in the sum of scores."""
    markers: Annotated[bool, omitted_at(False)] = False
    """Whether [CLS] is followed by [unused0] in queries and [unused1] in passages, ColBERT's compared [Q] and [D]."""

    def __post_init__(self) -> None:
        if self.dim < 1 or (self.query_masks is not None and self.query_masks < 1):
            raise ValueError("expected a dim of 1 or more, and query_masks of 1 or more, or null for none")
        if self.exact_match and self.query_masks is not None:
            raise ValueError("exact_match: no passage has a [MASK] to match, so expected null for query_masks")
        if self.exact_match and self.markers:
            raise ValueError("exact_match: the markers of queries and passages never match; expected markers: false")
        check_weight(self.weight)


def marker_ids(settings: LateSettings | None, tokenizer: Tokenizer) -> dict[Role, int]:
    """Return the ids of the markers by role, none if there are no markers; ValueError if the tokenizer lacks them."""
    if settings is None or not settings.markers:
        return {}
    return {role: tokenizer.token_id(name) for role, name in MARKERS.items()}


class LateView(nn.Module):
    """Projected hidden states of all tokens; its BERT and `forward` receive the tokens returned by `augmented`."""

    punctuation: Tensor

    def __init__(self, config: BertConfig, settings: LateSettings, tokenizer: Tokenizer) -> None:
        super().__init__()
        if settings.dim > config.hidden_size:
            raise ValueError(f"late.dim: expected at most the model's {config.hidden_size}, got {settings.dim}")
        if (settings.query_masks or 0) > config.max_position_embeddings:
            positions = f"expected at most the model's {config.max_position_embeddings} positions"
            raise ValueError(f"late.query_masks: {positions}, got {settings.query_masks}")
        marker_ids(settings, tokenizer)
        self.settings = settings
        self.cls, self.sep, self.mask = tokenizer.cls, tokenizer.sep, tokenizer.mask
        self.pad = tokenizer.pad
        self.register_buffer("punctuation", torch.from_numpy(tokenizer.punctuation), persistent=False)
        self.projection = nn.Linear(config.hidden_size, settings.dim, bias=settings.bias)
        nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)
        if settings.bias:
            nn.init.zeros_(self.projection.bias)

    def augmented(self, tokens: Tokens, role: Role) -> Tokens:
        """Return the encoder's input: queries padded with [MASK] to `query_masks` tokens; passages are unchanged.

        The mask is still that of the query's own tokens: [MASK]s attend to them, but no token attends to a [MASK].
        Texts are not truncated. Augmenting an augmented query returns an equal one.
        """
        count = self.settings.query_masks
        if role == "passage" or count is None:
            return tokens
        missing = max(0, count - tokens.ids.shape[1])
        ids_BL, mask_BL = pad(tokens.ids, (0, missing), value=self.pad), pad(tokens.mask, (0, missing), value=False)
        unattended_BL = ~mask_BL & (torch.arange(ids_BL.shape[1], device=ids_BL.device) < count)
        augmented = Tokens(ids_BL.masked_fill(unattended_BL, self.mask), mask_BL, unattended_BL)
        # The host knows the lengths, so it does not wait for a GPU to count the positions.
        num_positions = sum(max(length, count) for length in tokens.lengths)
        positions = first_positions(augmented.computed.sum(1), ids_BL.shape[1], num_positions)
        return known(augmented, positions=positions, lengths=tokens.lengths)

    def compared(self, tokens: Tokens, role: Role) -> tuple[Tensor, Tensor | None]:
        """Return a mask [B, L] of the tokens that MaxSim compares and, if only equal tokens match, their ids [B, L].

        The result depends only on the (augmented) tokens, so it can be recomputed at any time.
        """
        compared_BL = tokens.mask
        if role == "query":
            compared_BL = compared_BL | (tokens.ids == self.mask)
        if not self.settings.use_cls:
            compared_BL = compared_BL & (tokens.ids != self.cls)
        if not self.settings.use_sep:
            compared_BL = compared_BL & (tokens.ids != self.sep)
        if self.settings.skip_punctuation and role == "passage":
            compared_BL = compared_BL & ~torch.isin(tokens.ids, self.punctuation)
        return compared_BL, tokens.ids if self.settings.exact_match else None

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: Backbone) -> Representation:
        """Return a representation with only token vectors [B, L, D] in float32, and the mask of compared tokens."""
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            vectors_BLD = self.projection(hidden_BLH.float())
        if self.settings.normalise:
            vectors_BLD = normalize(vectors_BLD, dim=-1)
        mask_BL, ids_BL = self.compared(tokens, role)
        return Representation(tokens=vectors_BLD, token_mask=mask_BL, token_ids=ids_BL)

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """Return MaxSim [Q, P] in float32, computed in blocks of queries and passages, so that memory is bounded.

        A query token that is not compared, or has no token to be compared with, contributes 0.
        """
        query_tokens, passage_tokens = self._compared(queries), self._compared(passages)
        num_queries, num_passages = len(query_tokens), len(passage_tokens)
        pair = query_tokens.vectors.shape[1] * passage_tokens.vectors.shape[1]
        width = min(num_passages, max(1, MAX_ELEMENTS // pair))
        height = max(1, MAX_ELEMENTS // (pair * width))
        columns = [passage_tokens.rows(start, start + width) for start in range(0, num_passages, width)]
        return torch.cat([
            torch.cat([maxsim(query_tokens.rows(start, start + height), block) for block in columns], dim=1)
            for start in range(0, num_queries, height)
        ])  # fmt: skip

    def _compared(self, texts: Representation) -> Compared:
        if texts.tokens is None or texts.token_mask is None or (self.settings.exact_match and texts.token_ids is None):
            raise ValueError("the late view's similarity: expected tokens with their mask (and ids) on both sides")
        return Compared(texts.tokens, texts.token_mask, texts.token_ids if self.settings.exact_match else None)


@dataclass(frozen=True)
class Compared(Rows):
    """Tokens of B texts: vectors [B, L, D], a mask [B, L] of those compared, and ids [B, L] for exact matches."""

    vectors: Tensor
    mask: Tensor
    ids: Tensor | None


def maxsim(queries: Compared, passages: Compared) -> Tensor:
    """Return MaxSim [Q, P] in one block; with ids, only equal tokens match, with a similarity of at least 0."""
    products = inner_products(queries.vectors.flatten(0, 1), passages.vectors.flatten(0, 1))
    products_QIPJ = products.view(*queries.mask.shape, *passages.mask.shape)
    seen = passages.mask
    if queries.ids is not None:
        seen = seen & (queries.ids[:, :, None, None] == passages.ids)
    # Masked pairs get -inf, since 0 would be the maximum where all products are negative. It is added, since
    # masked_fill would store its mask [Q, I, P, J] for the gradient.
    best_QIP = (products_QIPJ + torch.where(seen, 0.0, -torch.inf)).max(3).values
    if queries.ids is not None:
        best_QIP = torch.relu(best_QIP)
    counts_QIP = queries.mask[:, :, None] & (best_QIP != -torch.inf)
    return torch.where(counts_QIP, best_QIP, 0.0).sum(1)
