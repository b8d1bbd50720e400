"""The interface of a miner: a module with its settings and a class `Selector(settings, scores)`.

A `Selector` is a `NegativeSelector`. The module's `SEVERAL_RUNS` states whether it reads more than one run, its
`READS_SCORES` whether it reads a teacher's scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from storage.settings import Seed, Settings

Row = dict[str, Any]


class MiningSettings(Settings):
    """The passages of a ranked list that are candidates, and the number of negatives to select from them."""

    miner: str
    depth: int = Field(gt=0)
    """Candidates per list, counted after the positives are removed."""
    negatives: int | None = Field(gt=0)
    """Negatives sampled per query; null keeps all that the miner selects."""
    seed: Seed


@dataclass(frozen=True)
class QueryCandidates:
    """The input of a miner for one query."""

    query_id: str
    positives: Sequence[str]
    """The passages that are trained on as positives, in the table's order."""
    ranked: Sequence[Sequence[Row]]
    """The complete ranked list of each run."""
    candidates: Sequence[Sequence[Row]]
    """Each ranked list without the passages of relevant documents, cut to the depth."""


class NegativeSelector(Protocol):
    """Selects the negatives of a query among its candidates."""

    def __call__(self, query: QueryCandidates) -> list[Row]:
        """Return the candidates that may be sampled, in the order in which negatives are written."""
        ...
