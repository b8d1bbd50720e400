"""Fixtures of modules that test an approximate engine: each names its ENGINE and the usual DEPTH of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.tables import Passages
from storage.vectors import Encoded
from tasks.retrieval.index import EngineSettings, index
from tasks.retrieval.ranking import Hits
from tests.tasks import clustered


@pytest.fixture(scope="module")
def passages(request: pytest.FixtureRequest, written: Any) -> Artifact[Passages]:
    rows: Artifact[Passages] = written(Passages, clustered.passage_rows(len(request.module.ENGINE.passages)))
    return rows


@pytest.fixture(scope="module")
def vectors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact[Any]:
    vectors: Artifact[Any] = request.module.ENGINE.vectors(tmp_path_factory.mktemp("vectors"))
    return vectors


@pytest.fixture(scope="module")
def find(
    request: pytest.FixtureRequest, run_stage: Any, passages: Artifact[Passages], vectors: Artifact[Any]
) -> Callable[..., list[Hits]]:
    """find(settings, depth, queries) -> the lists of a new index."""
    engine = request.module.ENGINE

    def search(
        settings: EngineSettings, depth: int = request.module.DEPTH, queries: Encoded | None = None
    ) -> list[Hits]:
        built = run_stage(index, passages=passages, vectors=vectors, settings=settings)
        lists: list[Hits] = engine.search(built, vectors, depth, queries)
        return lists

    return search
