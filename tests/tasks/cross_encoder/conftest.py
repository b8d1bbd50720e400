"""The cross-encoder and the tables of the tests of scoring and re-ranking."""

from typing import Any

import pytest

from storage.artifact import Source
from storage.store.store import Store
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.tasks.cross_encoder.score_tables import Tables


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source("teacher", folder_of(tiny_cross_encoder(), tmp_path_factory.mktemp("teacher")))


@pytest.fixture
def tables(written: Any, store: Store) -> Tables:
    return Tables(written)
