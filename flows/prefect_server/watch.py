"""Watches the Prefect server of a run in this process, and ends the run where the server is lost.

Prefect itself would retry each request for minutes. A stage that is being built is finished first: the store publishes
it without a server.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from flows.interrupt import RESUMES, ServerLost, end, limit_exit, reason
from flows.prefect_server.embedded_server import require_room
from storage.errors import UserError, masked
from tasks.runtime.signals import is_building_stage

POLL_SECONDS = 1.0
# A server that refuses connections has ended; one that is slow may be on a busy machine.
SECONDS_REFUSED, SECONDS_SILENT = 5.0, 60.0
SECONDS_FOR_AN_ANSWER = 10.0
SECONDS_FOR_THE_FIRST = 60.0
SECONDS_TO_REPORT = 6.0  # for Prefect to report that a run has failed


class ServerWatch:
    """A thread that polls the server during a block, and ends the process where the server does not answer."""

    def __init__(self, server: str, print_line: Callable[[str], None], database: Path | None = None) -> None:
        """`server` is its name in messages; `database` is the folder of an embedded server's database."""
        self._server, self._print_line, self._database = server, print_line, database
        self._error: Exception | None = None
        self._late: threading.Timer | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="server")

    def __enter__(self) -> ServerWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        if self._late:
            self._late.cancel()
        self._thread.join()

    def failed(self, error: Exception) -> None:
        """Note why the run failed: Prefect has a few seconds from now to report it."""
        self._error = error
        self._late = threading.Timer(SECONDS_TO_REPORT, end, reason(error))
        self._late.daemon = True
        self._late.start()
        limit_exit(SECONDS_TO_REPORT)

    def cause(self, error: Exception) -> Exception:
        """Return why the run failed, where Prefect raised `error`: the error of the run's body, or Prefect's own."""
        import httpx

        if self._error is not None:
            return self._error
        try:
            if self._database:
                require_room(self._database)
        except UserError as full:
            return full
        return self._lost() if isinstance(error, httpx.TransportError) else error

    def _lost(self) -> ServerLost:
        return ServerLost(f"{self._server} does not answer any more; what is finished is kept, and {RESUMES}")

    def _follow(self) -> None:
        answered, warned = time.monotonic(), False
        with client_without_retries(SECONDS_FOR_AN_ANSWER) as client:
            while not self._stopped.wait(POLL_SECONDS):
                patience, now = _patience(client.api_healthcheck()), time.monotonic()
                if patience is None:
                    answered, warned = now, False
                lost = patience is not None and now - answered >= patience
                if lost and is_building_stage() and not warned:
                    warned = True
                    self._print_line(f"{self._server} does not answer; this stage is finished first")
                if not self._stopped.is_set() and lost and not is_building_stage():
                    end(*reason(self._error or self.cause(self._lost())))


def _patience(error: Exception | None) -> float | None:
    """Return for how many seconds the server may fail in this way; None where it answers."""
    import httpx

    if error is None or (isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500):
        return None
    return SECONDS_REFUSED if isinstance(error, httpx.ConnectError) else SECONDS_SILENT


@contextlib.contextmanager
def client_without_retries(seconds: float) -> Iterator[Any]:
    """Yield a client of the settings' server that sends a request once and waits `seconds` for the answer."""
    import httpx
    from prefect import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    httpx_settings = {"timeout": httpx.Timeout(seconds, connect=SECONDS_FOR_AN_ANSWER)}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings=httpx_settings, sync_client=True) as client,
    ):
        yield client


def require_answer() -> str:
    """Return the address, without credentials, of the server that PREFECT_API_URL or a Prefect profile names.

    Raises `UserError` where it does not answer or refuses the user.
    """
    import httpx
    from prefect.settings import get_current_settings

    address = masked(str(get_current_settings().api.url))
    try:
        with client_without_retries(SECONDS_FOR_THE_FIRST) as client:
            client.api_version()
    except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
        raise UserError(
            f"PREFECT_API_URL: no Prefect server answers at {address} ({type(error).__name__}); start it, or unset "
            "PREFECT_API_URL to use an embedded server"
        ) from None
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise UserError(
                f"the Prefect server at {address} refuses this user ({error.response.status_code}): set "
                "PREFECT_API_AUTH_STRING to the user:password that it was started with"
            ) from None
        if error.response.is_client_error:
            raise UserError(
                f"PREFECT_API_URL: {address} is no Prefect API ({error.response.status_code}); it ends with /api"
            ) from None
    return address
