"""A Prefect server of a test module's own, and workers that end with the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.lab import Lab, Site, laboratory, site
from tests.services.servers import Service, register, start_server, start_worker

LONGEST = tuple(
    f"test_{name}.py"
    for name in (
        "storm", "worker_death", "resume_from_ui", "compose", "lease", "routing", "two_runs", "cancel", "up",
        "server_away", "corpus", "lost_server",
    )
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker of pytest has only them at the end."""
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server on SQLite with pools, deployments and automations registered; `server.url` is its API."""
    home = tmp_path_factory.mktemp("server")
    started = start_server(home)
    try:
        register(started.url, home)
        yield started
    finally:
        started.stop()


@pytest.fixture
def worker(server: Service, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """`worker(pool, name, store, **environment)` starts one that ends with the test."""
    started: list[Service] = []

    def begin(pool: str, name: str, store: Path, **more: str) -> Service:
        started.append(start_worker(server.url, pool, name, store, tmp_path / "home", **more))
        return started[-1]

    try:
        yield begin
    finally:
        for one in reversed(started):
            one.stop()


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server on PostgreSQL for all tests that ask for a lab."""
    ours = tmp_path_factory.getbasetemp()
    shared = ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours  # by the workers of this run of pytest
    with site(tmp_path_factory.mktemp("site"), shared) as built:
        yield built


@pytest.fixture
def lab(shared_site: Site, tmp_path: Path) -> Iterator[Lab]:
    """Workers and a store of a test's own, on the shared site."""
    with laboratory(tmp_path, shared_site) as built:
        yield built
