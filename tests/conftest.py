"""What every test may use: a store of its own, and a Prefect server that a worker's tests share."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import junkdrawer

from storage.store.store import Store
from tasks.session import Execution, Session, session
from tests.services.servers import Service, start_server
from tests.warm import cache_compiled_kernels

# How long an example takes says nothing on a busy machine; and each run has the same examples.
settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("any_machine")
# Hypothesis times garbage collections, for deadlines. What a signal raises during its callback would be lost.
junkdrawer._gc_initialized = True


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels_are_cached() -> None:
    cache_compiled_kernels()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in a temporary folder, current for the stages that the test calls."""
    with session(Session(Store(tmp_path / "store"), Execution(workers=1, threads=1, device="cpu"))) as current:
        yield current.store


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A Prefect server on SQLite; `prefect_server.url` is its API. Runs of other tests may have left rows there."""
    started = start_server(tmp_path_factory.mktemp("prefect_server"))
    yield started
    started.stop()


# Started in the background by a shell, Python ignores Ctrl-C, and under nohup SIGHUP; so would every process of a test.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no worker is left alone with them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
