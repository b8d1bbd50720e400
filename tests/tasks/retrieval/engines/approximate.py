"""The form that the tests of approximate engines share: build an index, search it, compare with all passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from storage.artifact import Artifact
from storage.vectors import Encoded
from tasks.retrieval.index import INDEX_JSON, EngineSettings, index
from tasks.retrieval.ranking import Hits, in_order
from tests.tasks import clustered
from tests.tasks.stored import names


@dataclass(frozen=True)
class Engine:
    """An engine with the passages and queries that its tests search."""

    module: ModuleType
    view: str
    passages: Encoded
    queries: Encoded
    rows_per_shard: int = 100

    def vectors(self, folder: Path) -> Artifact[Any]:
        return clustered.vectors_in(folder, self.passages, rows=self.rows_per_shard)

    def search(
        self, built: Artifact[Any], vectors: Artifact[Any], depth: int, queries: Encoded | None = None
    ) -> list[Hits]:
        """The lists of an index that is opened anew."""
        queries = queries or self.queries
        encode = clustered.asking(queries)
        searcher = self.module.open_index(built.path, vectors, encode, names(len(self.passages)), self.view)
        lists: list[Hits] = searcher([str(number) for number in range(len(queries))])(range(len(queries)), depth)
        return lists


def cut(lists: Sequence[Hits], depth: int) -> list[Hits]:
    return [Hits(hits.rows[:depth], hits.scores[:depth]) for hits in lists]


def assert_exact_scores(engine: Engine, lists: Sequence[Hits], all_hits: Sequence[Hits], rtol: float = 0) -> None:
    """Every listed passage has its exact score, and the lists are in a run's order."""
    ids = names(len(engine.passages))
    for hits, expected in zip(lists, all_hits, strict=True):
        score_of = dict(zip(expected.rows.tolist(), expected.scores, strict=True))
        wanted = in_order(ids, hits.rows, np.array([score_of[row] for row in hits.rows.tolist()], np.float32))
        assert np.array_equal(hits.rows, wanted.rows)
        np.testing.assert_allclose(hits.scores, wanted.scores, rtol=rtol, atol=0)


def assert_reproducible(
    engine: Engine, build: Callable[[], Artifact[Any]], passages: Artifact[Any], vectors: Artifact[Any],
    settings: EngineSettings, depth: int,
) -> None:  # fmt: skip
    """Two builds have equal bytes and lists, and a finished index is not built again."""
    one, other = build(), build()
    (name,) = {path.name for path in one.path.glob("index.*")} - {INDEX_JSON}
    file = one.path / name
    assert file.read_bytes() == (other.path / name).read_bytes()
    assert clustered.same(engine.search(one, vectors, depth), engine.search(other, vectors, depth))
    before = file.stat().st_mtime_ns
    index.body(one.path, passages, vectors, None, settings=settings)
    assert file.stat().st_mtime_ns == before
