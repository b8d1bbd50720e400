"""`pretrieve worker`: Prefect's worker of local processes, for which a run is alive while its process is.

A run sends heartbeats itself, and an automation takes it for dead where they stay away. They also stay away where its
process is paused, or gets no time on a busy machine. This worker waits for the process, so it knows better: it sends
heartbeats as well, and takes a run back that was called Crashed for its silence. A retry of a run whose process lives
attaches to that process; Prefect's own worker would end instead, and its runs with it. Where that process was about to
end, the run gets another.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.states import AwaitingRetry, Running
from prefect.workers.process import ProcessWorker

from flows.prefect_server.automations import SILENT
from flows.prefect_server.services import HEARTBEAT_SECONDS

SECONDS_TO_END = 20.0  # a process that has reported its last state ends within a few
SECONDS_TO_TRY_AGAIN = 3.0  # after a request that failed
ALIVE = "The run sent no heartbeat, but its process is alive."
ENDED = "The run's process has ended. Another resumes the run."
ATTACHED = "Retried while its process was alive: attached to that process."

warnings.filterwarnings("ignore", message="Type 'Worker' at")  # it is to take the place of Prefect's for this type


@dataclass
class Alive:
    """A run whose process lives."""

    retried: float | None = None
    """When it was first seen scheduled again, if it is."""
    cancelled: bool = False
    """Whether it was seen to be cancelled, which no worker takes back."""
    change: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its state is changed, so that the change is complete before the end of its process is noticed."""


class Worker(ProcessWorker):
    """A worker of local processes that vouches for its runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._alive = dict[UUID, Alive]()

    async def run(self, flow_run: Any, configuration: Any, task_status: Any = None) -> Any:
        """Run a flow run's process, and vouch for the run until the process has ended."""
        alive = self._alive[flow_run.id] = Alive()
        vouching = asyncio.create_task(self._vouch(flow_run))
        try:
            return await super().run(flow_run, configuration, task_status)
        finally:
            del self._alive[flow_run.id]
            # Cancelled under the lock: a request to set Running that is on its way ends before the state is read.
            async with alive.change:
                vouching.cancel()
                await self._patiently(self._resume_if_taken_back, flow_run)

    async def _vouch(self, flow_run: Any) -> None:
        seconds: float = HEARTBEAT_SECONDS
        while True:
            await asyncio.sleep(seconds)
            seconds = HEARTBEAT_SECONDS if await self._patiently(self._confirm, flow_run) else SECONDS_TO_TRY_AGAIN

    async def _patiently(self, request: Callable[[Any], Awaitable[None]], flow_run: Any) -> bool:
        """Send a request, and return whether it succeeded.

        Where it fails, log so and go on: the next one may succeed, and other runs need it.
        """
        try:
            await request(flow_run)
        except (httpx.HTTPError, PrefectException, LookupError, AttributeError) as error:
            self._logger.warning(f"{flow_run.name}: {type(error).__name__} while the worker vouched for it")
            return False
        return True

    async def _confirm(self, flow_run: Any) -> None:
        """Send a heartbeat of an active run. Set a run that was called Crashed for its silence to Running again."""
        alive = self._alive[flow_run.id]
        state = await self._state(flow_run)
        alive.cancelled = alive.cancelled or state.is_cancelling()
        if state.is_running():
            alive.retried = None
        if state.is_running() or state.is_cancelling():
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
        elif state.is_crashed() and state.message == SILENT and not alive.cancelled:
            await self._take_back(flow_run, ALIVE, state)

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[Any]) -> list[Any]:
        """Start the processes of scheduled runs, and attach to the processes that live."""
        others = []
        for entry in flow_run_response:
            if entry.flow_run.id in self._alive:
                await self._patiently(self._attach, entry.flow_run)
            else:
                others.append(entry)
        return await super()._submit_scheduled_flow_runs(others)

    async def _attach(self, flow_run: Any) -> None:
        """Set a retried run to Running, unless its process is about to end; then the retry starts another."""
        if (alive := self._alive.get(flow_run.id)) is None:
            return
        alive.retried = alive.retried or time.monotonic()
        if time.monotonic() - alive.retried >= SECONDS_TO_END:
            state = await self._state(flow_run)
            alive.retried = None
            alive.cancelled = False
            if state.is_scheduled():
                await self._take_back(flow_run, ATTACHED, state)

    async def _take_back(self, flow_run: Any, message: str, seen: Any) -> None:
        """Set a run to Running if its process lives and its state is the one that was seen."""
        alive = self._alive[flow_run.id]
        async with alive.change:
            if flow_run.id in self._alive and (await self._state(flow_run)).id == seen.id:
                self.get_flow_run_logger(flow_run).warning(message)
                await self.client.set_flow_run_state(flow_run.id, Running(message=message), force=True)

    async def _resume_if_taken_back(self, flow_run: Any) -> None:
        """Schedule a run that was set to Running while its process ended: nothing else would end it, or resume it.

        Prefect has set a run to Crashed by now if its process was killed. So this one had reported its end before.
        """
        state = await self._state(flow_run)
        if state.is_running() and state.message in (ALIVE, ATTACHED):
            self.get_flow_run_logger(flow_run).warning(ENDED)
            await self.client.set_flow_run_state(flow_run.id, AwaitingRetry(message=ENDED), force=True)

    async def _state(self, flow_run: Any) -> Any:
        return (await self.client.read_flow_run(flow_run.id)).state


def main() -> None:
    """Start a worker with the options of `prefect worker start`."""
    from prefect.cli import app

    sys.argv = ["prefect", "worker", "start", "--type", Worker.type, *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
