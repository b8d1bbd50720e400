"""Answer one question with an index, with each passage's score by every view of the retriever."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.retrievers.retriever import SUM
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import rows_at
from storage.tables import Checkpoint, Index, Passages, Vectors
from storage.vectors import describe_vectors
from tasks.retrieval.engines import exact
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.index import describe, engine
from tasks.retrieval.ranking import Indices
from tasks.retrieval.search import query_encoder
from tasks.retrieval.shared_passages import temporary_index


@dataclass(frozen=True)
class Searched:
    """The artifacts that a search reads."""

    passages: Artifact[Passages]
    index: Artifact[Index] | None
    """None where the vectors are searched exactly."""
    vectors: Artifact[Vectors] | None
    checkpoint: Artifact[Checkpoint] | None


@dataclass(frozen=True)
class Answer:
    """A retrieved passage."""

    rank: int
    passage_id: str
    title: str
    text: str
    scores: dict[str, float]
    """By view; the first is the view that ranks."""


def answer(question: str, searched: Searched, *, top: int, view: str | None) -> list[Answer]:
    """Return the `top` passages by a view, best first; by the sum of all views where none is named."""
    passages, index, vectors = searched.passages, searched.index, searched.vectors
    module = exact if index is None else engine(str(describe(index.path)["engine"]))
    ranking_view = _view(view, module.VIEWS, vectors)
    encode = None if vectors is None else query_encoder(vectors, searched.checkpoint)
    folder = passages.path if index is None else index.path
    with temporary_index(passages) as ids:
        hits = module.open_index(folder, vectors, encode, ids, ranking_view)([question])([0], top)[0]
    scores = {ranking_view: hits.scores.tolist()}
    if vectors is not None and encode is not None:
        query_rows: Indices = np.zeros(len(hits.rows), np.int64)
        for stored_view in _views(vectors):
            stored = StoredVectors(vectors.path, stored_view)
            scores[stored_view] = stored.scores(encode([question]), query_rows, hits.rows).tolist()
    rows = rows_at(passages, Passages, hits.rows.tolist(), ["passage_id", "title", "text"]).to_pylist()
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
