"""A worker that takes a run back just when its process ends; tests/services/test_worker_death.py has real ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings
from prefect.states import Crashed
from prefect.workers.process import ProcessWorker

from flows.prefect_server.automations import SILENT
from flows.prefect_server.worker import ENDED, Worker


class Server:
    """A Prefect server with one run, called Crashed for its silence. It completes a request that its sender drops."""

    def __init__(self) -> None:
        self.state: Any = Crashed(message=SILENT)
        self.received = asyncio.Event()
        self.requests = list[asyncio.Task[None]]()

    async def read_flow_run(self, _: Any) -> Any:
        return SimpleNamespace(state=self.state)

    async def set_flow_run_state(self, _: Any, state: Any, force: bool) -> None:
        self.received.set()
        self.requests.append(asyncio.create_task(self._apply(state)))
        await asyncio.shield(self.requests[-1])

    async def _apply(self, state: Any) -> None:
        for _ in range(10):  # so long that a worker which does not wait reads the state before
            await asyncio.sleep(0)
        self.state = state


async def end_of_a_run_that_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the state of a run whose process ends while the server sets it to Running."""
    server = Server()

    async def process(*_: Any) -> None:
        await server.received.wait()

    monkeypatch.setattr("flows.prefect_server.worker.HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(ProcessWorker, "run", lambda self, *given: process(*given))
    worker = Worker(work_pool_name="cpu")
    worker._client = server  # type: ignore[assignment]
    await asyncio.wait_for(worker.run(FlowRun(flow_id=uuid4(), name="a run"), None), 30)
    await asyncio.gather(*server.requests)
    return server.state


def test_a_run_that_is_taken_back_while_its_process_ends_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
        state = asyncio.run(end_of_a_run_that_is_taken_back(monkeypatch))

    assert (state.name, state.message) == ("AwaitingRetry", ENDED)
