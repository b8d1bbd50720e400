"""Answer questions with an index, with each passage's score by every view of the retriever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from models.retrievers.retriever import SUM
from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.row_index import PassageIndex
from storage.rows import rows_at
from storage.tables import Checkpoint, Index, Passages, Vectors
from storage.vectors import describe_vectors
from tasks.retrieval.engines import exact
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Hits, Indices
from tasks.retrieval.search import QueryEncoder


@dataclass(frozen=True)
class Searched:
    """The artifacts that a search reads."""

    passages: Artifact[Passages]
    index: Artifact[Index] | None
    """None where the vectors are searched exactly."""
    vectors: Artifact[Vectors] | None
    checkpoint: Artifact[Checkpoint] | Source | None


@dataclass(frozen=True)
class Answer:
    """A retrieved passage."""

    rank: int
    passage_id: str
    title: str
    text: str
    scores: dict[str, float]
    """By view; the first is the view that ranks."""


class OpenSearch:
    """An open index with its encoder of questions: what takes long to read is read once."""

    def __init__(self, searched: Searched, ids: PassageIndex, view: str | None = None) -> None:
        """`ids` are those of the passages; without a `view`, the sum of all views ranks."""
        index, vectors = searched.index, searched.vectors
        self.module: ModuleType = exact if index is None else engine(str(describe(index.path)["engine"]))
        self.view = _view(view, self.module.VIEWS, vectors)
        self.encode = None if vectors is None else QueryEncoder(vectors, searched.checkpoint)
        self.folder = searched.passages.path if index is None else index.path
        self.passages, self.ids = searched.passages, ids
        self.stored = {} if vectors is None else {name: StoredVectors(vectors.path, name) for name in _views(vectors)}
        self._searcher = self.module.open_index(self.folder, vectors, self.encode, ids, self.view)

    def hits(self, question: str, top: int) -> Hits:
        """Return the `top` passages, best first."""
        hits: Hits = self._searcher([question])([0], top)[0]
        return hits

    def scores(self, question: str, hits: Hits) -> dict[str, list[float]]:
        """Return the scores of retrieved passages by view, the view that ranks first."""
        scores: dict[str, list[float]] = {self.view: hits.scores.tolist()}
        if self.encode is not None:
            encoded, query_rows = self.encode([question]), np.zeros(len(hits.rows), np.int64)
            for name, vectors in self.stored.items():
                scores[name] = vectors.scores(encoded, query_rows, hits.rows).tolist()
        return scores

    def answers(self, question: str, top: int) -> list[Answer]:
        """Return the `top` passages with texts and scores, best first."""
        hits = self.hits(question, top)
        return self.with_texts(hits.rows, self.scores(question, hits))

    def with_texts(self, passage_rows: Indices, scores: dict[str, list[float]]) -> list[Answer]:
        """Return passages, given by row in their order, with their texts."""
        columns: Sequence[str] = ["passage_id", "title", "text"]
        rows = rows_at(self.passages, Passages, passage_rows.tolist(), columns).to_pylist()
        return [
            Answer(number + 1, **row, scores={name: values[number] for name, values in scores.items()})
            for number, row in enumerate(rows)
        ]


def _view(requested: str | None, searchable: tuple[str, ...], vectors: Artifact[Vectors] | None) -> str:
    """Return the view to rank by: the requested one, else the sum of all views."""
    stored = _views(vectors) if vectors is not None else searchable
    possible = [view for view in searchable if view in stored or (view == SUM and len(stored) > 1)]
    if requested is not None and requested not in possible:
        raise UserError(f"--view {requested}: expected one of {', '.join(possible)}")
    return requested or possible[-1]


def _views(vectors: Artifact[Vectors]) -> tuple[str, ...]:
    return tuple(describe_vectors(vectors.path)["views"])
