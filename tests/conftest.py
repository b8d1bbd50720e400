"""What every test may use: a store of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.store import Store
from tasks.stage import Execution, Session, session


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a temporary folder, current for the stages that the test calls."""
    with session(Session(Store(tmp_path / "store"), Execution(workers=1, threads=1, device="cpu"))) as current:
        yield current.store
