"""Answer one question with an index, and say what each view makes of each passage that is found."""

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
from tasks.retrieval.ranking import Indices, passage_ids
from tasks.retrieval.search import query_encoder


@dataclass(frozen=True)
class Answer:
    """A passage that was found."""

    rank: int
    passage_id: str
    title: str
    text: str
    scores: dict[str, float]
    """By view, the one that it is ranked by first."""


def answer(
    question: str,
    passages: Artifact[Passages],
    index: Artifact[Index] | None,
    vectors: Artifact[Vectors] | None,
    checkpoint: Artifact[Checkpoint] | None,
    *,
    top: int,
    view: str | None,
) -> list[Answer]:
    """The `top` passages by a view, or by all where none is named, best first."""
    ids = passage_ids(passages)
    module = exact if index is None else engine(str(describe(index.path)["engine"]))
    ranked_by = _view(view, module.VIEWS, vectors)
    encode = None if vectors is None else query_encoder(vectors, checkpoint)
    folder = passages.path if index is None else index.path
    hits = module.open_index(folder, vectors, encode, ids, ranked_by)([question])([0], top)[0]
    scores = {ranked_by: hits.scores.tolist()}
    if vectors is not None and encode is not None:
        numbers: Indices = np.zeros(len(hits.rows), np.int64)
        for each in _views(vectors):
            stored = StoredVectors(vectors.path, each)
            scores[each] = stored.scores(encode([question]), numbers, hits.rows).tolist()
    rows = rows_at(passages, Passages, hits.rows.tolist(), ["passage_id", "title", "text"]).to_pylist()
    return [
        Answer(number + 1, **row, scores={name: found[number] for name, found in scores.items()})
        for number, row in enumerate(rows)
    ]


def _view(wanted: str | None, known: tuple[str, ...], vectors: Artifact[Vectors] | None) -> str:
    """The view to rank by: all that there are, where none is named."""
    stored = _views(vectors) if vectors is not None else known
    possible = [each for each in known if each in stored or (each == SUM and len(stored) > 1)]
    if wanted is not None and wanted not in possible:
        raise UserError(f"--view {wanted}: expected one of {', '.join(possible)}")
    return wanted or possible[-1]


def _views(vectors: Artifact[Vectors]) -> tuple[str, ...]:
    return tuple(describe_vectors(vectors.path)["views"])
