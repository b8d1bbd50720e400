"""The late view: a vector a token; each token of a query looks for the most alike of a passage (MaxSim).

s(q, p) = sum_i max_j <e_i, e_j>, with e = W h. Khattab and Zaharia, ColBERT, section 3: normalised vectors, queries
filled up with [MASK], punctuation of passages left out. CAME, section 3.2.2, equation 5: vectors as they are, and
queries too. Gao et al., COIL, section 3: a token sees only passage tokens that are the same WordPiece token, and counts
nothing where there is none or none helps.

Shape suffixes: B batch, L length, H hidden, D dimension; Q queries of I tokens, P passages of J tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from models.batch import Rows
from models.layers.bert import BertConfig, BertForMaskedLM
from models.representation import Representation, Role, inner_products
from models.settings import VALIDATED
from models.tokens import Tokenizer, Tokens

MAX_ELEMENTS = 2**26
"""Similarities of tokens that are held at a time: 256 MB."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the papers vary."""

    __pydantic_config__: ClassVar[dict[str, Any]] = VALIDATED

    dim: int
    """D, to which one matrix maps the hidden states of queries and passages."""
    bias: bool
    normalise: bool
    """Whether vectors get length 1."""
    exact_match: bool
    """Whether only the same WordPiece tokens are compared, and never count less than 0 (COIL)."""
    skip_punctuation: bool
    """Whether passages' punctuation is left out."""
    query_masks: int | None
    """To how many tokens queries are filled up with [MASK], which is not attended to but is compared (ColBERT)."""
    use_cls: bool
    use_sep: bool
    """Whether [CLS] and [SEP] are compared."""
    weight: float = 1.0
    """The weight of the view's scores in the sum."""

    def __post_init__(self) -> None:
        if self.dim < 1 or (self.query_masks is not None and self.query_masks < 1):
            raise ValueError("expected a dim of 1 or more, and query_masks of 1 or more, or null for none")
        if self.exact_match and self.query_masks is not None:
            raise ValueError("exact_match: no passage has a [MASK] to match, so expected null for query_masks")
        if not 0 < self.weight < float("inf"):
            raise ValueError("weight: expected a number above 0; leave the view out where it shall not count")


class View(nn.Module):
    """Projected hidden states of all tokens. Give its BERT, and this, what `augmented` makes of the tokens."""

    punctuation: Tensor

    def __init__(self, config: BertConfig, settings: Settings, tokenizer: Tokenizer) -> None:
        super().__init__()
        if settings.dim > config.hidden_size:
            raise ValueError(f"late.dim: expected at most the model's {config.hidden_size}, got {settings.dim}")
        if (settings.query_masks or 0) > config.max_position_embeddings:
            positions = f"expected at most the model's {config.max_position_embeddings} positions"
            raise ValueError(f"late.query_masks: {positions}, got {settings.query_masks}")
        self.settings = settings
        self.cls, self.sep, self.mask = tokenizer.cls, tokenizer.sep, tokenizer.mask
        self.pad = tokenizer.pad
        self.register_buffer("punctuation", torch.from_numpy(tokenizer.punctuation), persistent=False)
        self.projection = nn.Linear(config.hidden_size, settings.dim, bias=settings.bias)
        nn.init.normal_(self.projection.weight, 0.0, config.initializer_range)
        if settings.bias:
            nn.init.zeros_(self.projection.bias)

    def augmented(self, tokens: Tokens, role: Role) -> Tokens:
        """What the BERT shall read: a query's ids end in [MASK] up to `query_masks` tokens, the rest is as it was.

        The mask stays that of the query's own tokens: no token attends to a [MASK], but [MASK]s attend to them. Texts
        are not cut, and reading what is filled up already changes nothing.
        """
        count = self.settings.query_masks
        if role == "passage" or count is None:
            return tokens
        missing = max(0, count - tokens.ids.shape[1])
        ids_BL, mask_BL = pad(tokens.ids, (0, missing), value=self.pad), pad(tokens.mask, (0, missing), value=False)
        unattended_BL = ~mask_BL & (torch.arange(ids_BL.shape[1], device=ids_BL.device) < count)
        return Tokens(ids_BL.masked_fill(unattended_BL, self.mask), mask_BL, unattended_BL)

    def compared(self, tokens: Tokens, role: Role) -> tuple[Tensor, Tensor | None]:
        """Which tokens MaxSim may see [B, L], and, where only equal ones match, their WordPiece tokens [B, L].

        It depends on nothing that is learned, so it can be read from (augmented) tokens again.
        """
        seen_BL = tokens.mask
        if role == "query":
            seen_BL = seen_BL | (tokens.ids == self.mask)
        if not self.settings.use_cls:
            seen_BL = seen_BL & (tokens.ids != self.cls)
        if not self.settings.use_sep:
            seen_BL = seen_BL & (tokens.ids != self.sep)
        if self.settings.skip_punctuation and role == "passage":
            seen_BL = seen_BL & ~torch.isin(tokens.ids, self.punctuation)
        return seen_BL, tokens.ids if self.settings.exact_match else None

    def forward(self, hidden_BLH: Tensor, tokens: Tokens, role: Role, model: BertForMaskedLM) -> Representation:
        """The tokens' part alone; vectors [B, L, D] in single precision, also of tokens that are not compared."""
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            vectors_BLD = self.projection(hidden_BLH.float())
        if self.settings.normalise:
            vectors_BLD = normalize(vectors_BLD, dim=-1)
        mask_BL, ids_BL = self.compared(tokens, role)
        return Representation(tokens=vectors_BLD, token_mask=mask_BL, token_ids=ids_BL)

    def similarity(self, queries: Representation, passages: Representation) -> Tensor:
        """MaxSim [Q, P], in single precision; some queries with some passages at a time, so that memory is bounded.

        A query token that is not compared, or has nothing to be compared with, counts 0.
        """
        asking, asked = self._compared(queries), self._compared(passages)
        pair = asking.vectors.shape[1] * asked.vectors.shape[1]
        num_passages = min(len(asked), max(1, MAX_ELEMENTS // pair))
        num_queries = max(1, MAX_ELEMENTS // (pair * num_passages))
        columns = [asked.rows(start, start + num_passages) for start in range(0, len(asked), num_passages)]
        return torch.cat([
            torch.cat([maxsim(asking.rows(start, start + num_queries), each) for each in columns], dim=1)
            for start in range(0, len(asking), num_queries)
        ])  # fmt: skip

    def _compared(self, texts: Representation) -> Compared:
        if texts.tokens is None or texts.token_mask is None or (self.settings.exact_match and texts.token_ids is None):
            raise ValueError("the late view's similarity: expected tokens with their mask (and ids) on both sides")
        return Compared(texts.tokens, texts.token_mask, texts.token_ids if self.settings.exact_match else None)


@dataclass(frozen=True)
class Compared(Rows):
    """Tokens of B texts: vectors [B, L, D], which of them are compared [B, L], their ids [B, L] for exact matches."""

    vectors: Tensor
    mask: Tensor
    ids: Tensor | None


def maxsim(queries: Compared, passages: Compared) -> Tensor:
    """[Q, P], all at a time; with ids, tokens only see the same WordPiece token, and count 0 at least."""
    products = inner_products(queries.vectors.flatten(0, 1), passages.vectors.flatten(0, 1))
    products_QIPJ = products.view(*queries.mask.shape, *passages.mask.shape)
    seen = passages.mask
    if queries.ids is not None:
        seen = seen & (queries.ids[:, :, None, None] == passages.ids)
    # Not 0, which would win where all others are negative; and added, since a masked_fill would keep its mask
    # [Q, I, P, J] for the gradient.
    best_QIP = (products_QIPJ + torch.where(seen, 0.0, -torch.inf)).max(3).values
    if queries.ids is not None:
        best_QIP = torch.relu(best_QIP)
    counts_QIP = queries.mask[:, :, None] & (best_QIP != -torch.inf)
    return torch.where(counts_QIP, best_QIP, 0.0).sum(1)
