"""What tests of stages may use: artifacts made of rows that the test writes down, or by a stage without a store."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Table
from tasks.runtime import process_pool
from tasks.session import Execution, Session, current_session, session
from tasks.stage import Stage
from tests.tasks.forked_processes import fork_ranks, fork_server

Written = Callable[[type[Table], Iterable[Mapping[str, Any]]], Artifact[Any]]
RunStage = Callable[..., Artifact[Any]]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """written(Table, rows) -> an artifact with these rows."""

    def write(table: type[Table], rows: Iterable[Mapping[str, Any]]) -> Artifact[Any]:
        folder = tmp_path_factory.mktemp(table.__name__)
        write_rows(folder, table, rows)
        return Artifact(table.__name__.lower(), folder.name, folder)

    return write


@pytest.fixture(scope="session")
def run_stage(tmp_path_factory: pytest.TempPathFactory) -> RunStage:
    """run_stage(stage, settings=..., **inputs) -> the artifact that it builds; call it where a session is current."""

    def make(stage: Stage[Any], *inputs: Any, settings: Settings | None = None, **named: Any) -> Artifact[Any]:
        folder = tmp_path_factory.mktemp(stage.name)
        given = inputs if len(inputs) > 1 else stage.bind(*inputs, **named)
        stage.body(folder, *given, **({"settings": settings} if settings else {}))
        return Artifact(stage.name, folder.name, folder)

    return make


@pytest.fixture(scope="module")
def on_one_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session for fixtures that outlive a test: CPU, one thread."""
    execution = Execution(workers=1, threads=1, device="cpu")
    with session(Session(Store(tmp_path_factory.mktemp("store")), execution)) as current:
        yield current


@pytest.fixture
def printed(store: Store) -> list[str]:
    """The lines that stages print in the test's session."""
    lines: list[str] = []
    current_session().print_line = lines.append
    return lines


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a training are forked from one that has imported PyTorch."""
    fork_ranks(monkeypatch)


@pytest.fixture
def forked_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of shards are forked from one that has imported PyTorch."""
    monkeypatch.setattr(process_pool, "get_context", lambda method: fork_server())
