"""The contents of a finished run or an adaptation, to browse: collections with their systems, and trainings.

A collection is the passages that were searched, with the queries of a split if there are some. A system is a row of the
report: it has the ranking that was evaluated, and the index that answers other questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import UserError, suggestion
from storage.store.store import Store
from storage.tables import Negatives, Passages, Positives, PseudoQueries, Qrels, Queries, Run
from tasks.retrieval.interactive import Searched


@dataclass(frozen=True)
class RankedSystem:
    """A ranking of passages, as the report names it."""

    name: str
    description: str
    searched: Searched | None = None
    """None where it answers no other questions than those of the split: a fusion, or a model from outside the store."""
    view: str | None = None
    ranking: Artifact[Run] | None = None
    """The evaluated ranking of the collection's queries; None where there are no queries."""
    members: Mapping[str, Artifact[Run]] = field(default_factory=dict)
    """The rankings that it fuses."""
    row: str = ""
    """Its name in the table of the queries' values."""


@dataclass(frozen=True)
class Collection:
    """Searched passages, the systems that search them, and the queries that they were evaluated with."""

    name: str
    passages: Artifact[Passages]
    systems: Mapping[str, RankedSystem]
    queries: Artifact[Queries] | None = None
    qrels: Artifact[Qrels] | None = None
    metrics: Path | None = None
    """The folder with the values of each query."""
    relevant_from: int = 1
    ignore_identical_ids: bool = False

    def pair(self, preferred: Sequence[str]) -> tuple[str, str]:
        """Return the two systems that are compared first: the preferred ones, if it has them."""
        names = [*(name for name in preferred if name in self.systems), *self.systems]
        first, *others = dict.fromkeys(names)
        return first, others[0] if others else first


@dataclass(frozen=True)
class Training:
    """The data of a fine-tuning round: queries with their positives and negatives."""

    name: str
    passages: Artifact[Passages]
    queries: Artifact[Queries]
    positives: Artifact[Positives]
    negatives: Artifact[Negatives]


@dataclass(frozen=True)
class DocumentQueries:
    """The pseudo-queries of one split of an adaptation, which have no table that names the passage of each."""

    split: str
    queries: Artifact[Queries]
    labels: Artifact[Positives] | Artifact[Qrels]
    """The documents that the queries of the split should retrieve."""
    table: type[Positives] | type[Qrels]


@dataclass(frozen=True)
class Contents:
    """Everything that the page shows."""

    name: str
    title: str
    description: str
    metric: str
    preferred: Sequence[str]
    """The systems that are compared first."""
    store: Store
    collections: Sequence[Collection]
    trainings: Mapping[str, Training]
    pseudo_queries: Sequence[Artifact[PseudoQueries]]
    document_queries: Sequence[DocumentQueries] = ()
    """Pseudo-queries of documents; empty for a run that is no adaptation."""

    def check(self) -> None:
        """Compare the tables that pages read with their manifests. Raises DamagedArtifact.

        Indexes, vectors and models are checked when they are opened.
        """
        tables: list[Artifact[Any] | None] = [*self.pseudo_queries]
        for collection in self.collections:
            systems = collection.systems.values()
            rankings = [ranking for system in systems for ranking in (system.ranking, *system.members.values())]
            tables += [collection.passages, collection.queries, collection.qrels, *rankings]
        for training in self.trainings.values():
            tables += [training.passages, training.queries, training.positives, training.negatives]
        for table in tables:
            if table is not None:
                self.store.check(table)


def known(name: str, names: Sequence[str] | Mapping[str, Any], what: str) -> str:
    """Return the name. Raises UserError where it is none of the names."""
    if name not in names:
        raise UserError(f"{what} {name!r}: this run has none of this name; {suggestion(name, names)}")
    return name
