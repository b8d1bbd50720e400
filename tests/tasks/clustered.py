"""Random passages in clusters, where an approximate index has something to find, and how much of the best it found."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from storage.artifact import Artifact
from storage.row_index import PassageIndex
from storage.tables import Vectors
from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.retrieval.ranking import Hits, in_order
from tests.tasks.stored import offsets, store

Sparse = list[dict[int, float]]
Tokens = list[np.ndarray]


def vectors_in(folder: Path, encoded: Encoded, *, rows: int = 100, exact_match: bool = False) -> Artifact[Vectors]:
    """These passages' vectors, so many a shard, as an artifact."""
    return Artifact("encode", folder.name, store(folder, encoded, rows=rows, exact_match=exact_match))


def passage_rows(count: int) -> list[dict[str, object]]:
    """As many rows of a Passages table, each a document of its own."""
    blank = {"text": "a text", "title": "", "start": 0, "end": 1, "num_tokens": 1}
    return [{"passage_id": f"p{n}", "doc_id": f"p{n}", **blank} for n in range(count)]


def asking(queries: Encoded) -> Callable[[Sequence[str]], Encoded]:
    """An encoder of the texts "0", "1" and so on, which are these queries."""
    return lambda texts: queries.taken([int(text) for text in texts])


def dense(draw: np.random.Generator, count: int, dimension: int = 16, clusters: int = 20) -> np.ndarray:
    """Vectors around a few centres, which are the same for every draw."""
    centres = np.random.default_rng(99).standard_normal((clusters, dimension)) * 2
    noise = draw.standard_normal((count, dimension))
    return (centres[draw.integers(0, clusters, count)] + noise).astype(np.float32)


def sparse(draw: np.random.Generator, count: int, vocabulary: int = 300, longest: int = 30) -> Sparse:
    """Weights of WordPiece tokens that are mostly those of the passage's topic; some passages have none."""
    rows = []
    for _ in range(count):
        topic, length = int(draw.integers(0, 10)), int(draw.integers(0, longest))
        own = topic * vocabulary // 10 + draw.integers(0, vocabulary // 10, length)
        pieces = np.unique(np.where(draw.random(length) < 0.8, own, draw.integers(0, vocabulary, length)))
        rows.append({int(piece): float(np.float32(draw.random() * 3 + 0.01)) for piece in pieces})
    return rows


def tokens(draw: np.random.Generator, count: int, dimension: int = 16, longest: int = 12) -> Tokens:
    """Unit vectors of each passage's tokens; some passages have none."""
    rows = [dense(draw, int(draw.integers(0, longest)), dimension) for _ in range(count)]
    return [row / np.linalg.norm(row, axis=1, keepdims=True).clip(1e-9) for row in rows]


def as_sparse(rows: Sparse) -> SparseRows:
    """Rows of weights as they are stored."""
    return SparseRows(
        offsets([len(row) for row in rows]),
        np.array([piece for row in rows for piece in row], np.int32),
        np.array([weight for row in rows for weight in row.values()], np.float32),
    )


def as_tokens(rows: Tokens) -> TokenRows:
    """Rows of tokens as they are stored."""
    return TokenRows(offsets([len(row) for row in rows]), np.concatenate(rows), np.zeros(0, np.int32))


def max_sim(query: np.ndarray, passage: np.ndarray) -> float:
    """The sum over the query's tokens of the best inner product, by the formula; 0 for a passage without tokens."""
    if not len(passage):
        return 0.0
    return sum(max(float(np.dot(q.astype(float), p.astype(float))) for p in passage) for q in query)


def truth(scores: Sequence[float], depth: int, ids: PassageIndex) -> Hits:
    """The best of all passages, given the scores of all."""
    hits = in_order(ids, np.arange(len(scores)), np.array(scores, np.float64).astype(np.float32))
    return Hits(hits.rows[:depth], hits.scores[:depth])


def recall(results: Sequence[Hits], expected: Sequence[Hits]) -> float:
    """The share of the expected passages that was found."""
    pairs = list(zip(results, expected, strict=True))
    return sum(len(np.intersect1d(f.rows, e.rows)) for f, e in pairs) / sum(len(e.rows) for _, e in pairs)


def same(results: Sequence[Hits], expected: Sequence[Hits]) -> bool:
    """Whether the lists are equal to the last bit."""
    pairs = list(zip(results, expected, strict=True))
    return all(np.array_equal(f.rows, e.rows) and np.array_equal(f.scores, e.scores) for f, e in pairs)
