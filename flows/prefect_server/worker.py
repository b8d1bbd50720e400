"""`pretrieve worker`: Prefect's worker of local processes, for which a run is alive while its process is.

A run sends heartbeats itself, and an automation takes it for dead where they stay away. They also stay away where its
process is paused, or gets no time on a busy machine. This worker waits for the process, so it knows better: it sends
heartbeats as well, and takes a run back that was called Crashed for its silence. A retry of a run whose process lives
attaches to that process; Prefect's own worker would end instead, and its runs with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import warnings
from typing import Any
from uuid import UUID

import httpx
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.states import Running
from prefect.workers.process import ProcessWorker

from flows.prefect_server.automations import SILENT
from flows.prefect_server.services import HEARTBEAT_SECONDS

SECONDS_TO_END = 20.0  # a process that has reported its last state ends within a few
ALIVE = "The run sent no heartbeat, but its process is alive."
ATTACHED = "Retried while its process was alive: attached to that process."

warnings.filterwarnings("ignore", message="Type 'Worker' at")  # it is to take the place of Prefect's for this type


class Worker(ProcessWorker):
    """A worker of local processes that vouches for its runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._retried = dict[UUID, float | None]()  # when a run whose process lives was first seen retried, if ever

    async def run(self, flow_run: Any, configuration: Any, task_status: Any = None) -> Any:
        """Run a flow run's process, and vouch for the run until the process has ended."""
        self._retried[flow_run.id] = None
        vouching = asyncio.create_task(self._vouch(flow_run))
        try:
            return await super().run(flow_run, configuration, task_status)
        finally:
            vouching.cancel()
            del self._retried[flow_run.id]

    async def _vouch(self, flow_run: Any) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with contextlib.suppress(httpx.HTTPError, PrefectException):
                await self._confirm(flow_run)

    async def _confirm(self, flow_run: Any) -> None:
        """Send a heartbeat of an active run. Set a run that was called Crashed for its silence to Running again."""
        state: Any = (await self.client.read_flow_run(flow_run.id)).state
        if state.is_running():
            emit_event(
                event="prefect.flow-run.heartbeat",
                resource={
                    "prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.name": flow_run.name
                },
                related=[
                    {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"}
                    for tag in flow_run.tags
                ],
            )  # fmt: skip
        elif state.is_crashed() and state.message == SILENT:
            await self._take_back(flow_run, ALIVE)

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[Any]) -> list[Any]:
        """Start the processes of scheduled runs, and attach to the processes that live."""
        for entry in flow_run_response:
            if entry.flow_run.id in self._retried:
                await self._attach(entry.flow_run)
        others = [entry for entry in flow_run_response if entry.flow_run.id not in self._retried]
        return await super()._submit_scheduled_flow_runs(others)

    async def _attach(self, flow_run: Any) -> None:
        """Set a retried run to Running, unless its process is about to end; then the retry starts another."""
        seen = self._retried[flow_run.id] = self._retried[flow_run.id] or time.monotonic()
        if time.monotonic() - seen >= SECONDS_TO_END:
            self._retried[flow_run.id] = None
            await self._take_back(flow_run, ATTACHED)

    async def _take_back(self, flow_run: Any, message: str) -> None:
        self.get_flow_run_logger(flow_run).warning(message)
        await self.client.set_flow_run_state(flow_run.id, Running(message=message), force=True)


def main() -> None:
    """Start a worker with the options of `prefect worker start`."""
    from prefect.cli import app

    sys.argv = ["prefect", "worker", "start", "--type", Worker.type, *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
