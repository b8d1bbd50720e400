"""A batch of training examples: queries, each with a positive and hard negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.batch import Rows, known
from models.tokens import Tokens


@dataclass(frozen=True)
class Examples(Rows):
    """Q queries and, in the same order, G passages per query, the positive first; or both `sorted_by_length`."""

    queries: Tokens
    passages: Tokens
    group: int
    excluded: Tensor | None
    """[Q, P], True where a passage is relevant to a query but is not its positive here."""
    step_share: float = 0.0
    """The share of the training that is this step: 1 / steps."""
    progress: float = 0.0
    """The share of the training steps before this one."""
    teacher: Tensor | None = None
    """[Q, G], a cross-encoder's scores of each query's own passages."""
    order: tuple[Tensor, Tensor] | None = None
    """[Q] and [P], the original positions of queries and passages after sorting; None without sorting."""

    def __len__(self) -> int:
        return len(self.queries.ids)

    def sorted_by_length(self) -> Examples:
        """Return the examples with queries and passages sorted by length, independently of each other.

        Chunks then have texts of similar length and nearly no padding. The original order is restored before the
        texts of the batch are compared.
        """
        sides = self.queries, self.passages
        query_order, passage_order = (torch.argsort(side.mask.sum(1), stable=True) for side in sides)
        queries = Tokens(self.queries.ids[query_order], self.queries.mask[query_order])
        passages = Tokens(self.passages.ids[passage_order], self.passages.mask[passage_order])
        return replace(self, queries=queries, passages=passages, order=(query_order, passage_order))

    def rows(self, start: int, stop: int) -> Examples:
        """Return the queries from `start` up to `stop` and their passages, without the fields of the complete batch."""
        passages = self.passages.rows(start * self.group, stop * self.group)
        return replace(
            self, queries=self.queries.rows(start, stop), passages=passages, excluded=None, teacher=None, order=None
        )


def cut_to_longest(tokens: Tokens) -> Tokens:
    """Return the tokens without the columns that are padding in every text."""
    length, longest = tokens.ids.shape[1], tokens.longest
    cut = Tokens(tokens.ids[:, :longest], tokens.mask[:, :longest])
    rows_N = tokens.positions // length
    return known(cut, positions=tokens.positions - rows_N * (length - longest), lengths=tokens.lengths)


def known_positives(relevant: Sequence[set[str]], documents: Sequence[str], group: int) -> Tensor | None:
    """Return a mask [Q, P], True where a passage's document is relevant to a query but not its positive here.

    Returns None if no passage is to be excluded.
    """
    excluded_QP = torch.tensor([[document in relevant_ids for document in documents] for relevant_ids in relevant])
    for query in range(len(relevant)):
        excluded_QP[query, query * group] = False
    return excluded_QP if excluded_QP.any() else None
