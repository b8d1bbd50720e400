"""The few requests that commands send to a Prefect server directly, without Prefect's client."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from storage.errors import UserError, masked

ACTIVE = ("RUNNING", "PENDING", "CANCELLING")
PAGE = 200  # rows; a server gives no more, unless it is set to
RETRY_SECONDS = 2.0  # the first pause before a request is sent again; each further one is twice as long
LONGEST_PAUSE = 15.0
PATIENCE_SECONDS = 30.0  # SQLite is locked for a while where many runs write
ANSWER_SECONDS = 60.0  # for one request, of a server that has taken it
OWN_SERVER = (
    "set PREFECT_SERVER_API_AUTH_STRING to the user:password that `pretrieve up` was started with (`pretrieve down "
    "--force` ends everything without asking the server)"
)
NAMED_SERVER = (
    "set PREFECT_API_AUTH_STRING to the user:password that the server was started with (PREFECT_SERVER_API_AUTH_STRING)"
)


@dataclass(frozen=True)
class Api:
    """A server's API. Methods raise httpx.HTTPError where it does not answer, `UserError` where it refuses the user."""

    url: str
    """The address, which ends with /api."""
    secret: str | None = None
    """user:password, where the server requires them."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long a request is repeated while the server fails with HTTP 5xx, or takes it but is too busy to answer."""
    outages: bool = False
    """Whether a request is also repeated while the server does not answer at all."""
    remedy: str = OWN_SERVER
    """What to do where the server refuses the user."""
    verify: ssl.SSLContext | bool = field(default=True, repr=False)
    """The certificates with which the server's is checked."""

    @classmethod
    def of_settings(cls, patience_seconds: float = PATIENCE_SECONDS, *, outages: bool = False) -> Api:
        """Return the API of the server that Prefect's settings name: its address, password and certificates.

        Raises `UserError` where they name none.
        """
        from prefect.settings import get_current_settings

        api = get_current_settings().api
        if not api.url:
            raise UserError(
                "PREFECT_API_URL is not set: name the server, as http://127.0.0.1:4200/api (`pretrieve up` starts one)"
            )
        secret = api.auth_string.get_secret_value() if api.auth_string else None
        verify = not api.tls_insecure_skip_verify and ssl.create_default_context(cafile=api.ssl_cert_file)
        return cls(api.url.rstrip("/"), secret, patience_seconds, outages, NAMED_SERVER, verify)

    def healthy(self) -> bool:
        """Return whether the server answers; this needs no password."""
        return answers(f"{self.url}/health")

    def check(self) -> None:
        """Raise `UserError` where the server refuses the user or does not answer."""
        import httpx

        try:
            self.send("GET", "admin/version", None)
        except httpx.HTTPError as error:
            raise UserError(
                f"the server at {self.url} does not answer ({type(error).__name__}): try again; `pretrieve down "
                "--force` ends everything"
            ) from None

    def send(self, method: str, path: str, body: Any) -> Any:
        """Send a request and return the answer's JSON. Prints a line before the request is repeated."""
        import httpx

        for seconds in _pauses(self.patience_seconds):
            try:
                return self._send_once(method, path, body)
            except httpx.HTTPError as error:
                if (problem := self._temporary_problem(error)) is None:
                    raise
                print(f"the server at {masked(self.url)} {problem}: trying again in {seconds:.0f} s", flush=True)
                time.sleep(seconds)
        return self._send_once(method, path, body)

    def _temporary_problem(self, error: Exception) -> str | None:
        """Return what happened where a later request may succeed, else None."""
        import httpx

        if isinstance(error, httpx.HTTPStatusError):
            return f"answers HTTP {error.response.status_code}" if error.response.is_server_error else None
        if isinstance(error, httpx.ReadTimeout):
            return f"has not answered within {ANSWER_SECONDS:g} s"
        outage = self.outages and isinstance(error, httpx.TransportError)
        return f"does not answer ({type(error).__name__})" if outage else None

    def _send_once(self, method: str, path: str, body: Any) -> Any:
        import httpx

        user, _, password = (self.secret or "").partition(":")
        auth = (user, password) if self.secret else None
        with httpx.Client(auth=auth, timeout=ANSWER_SECONDS, verify=self.verify) as client:
            headers = self._csrf_headers(client) if method != "GET" else {}
            answer = client.request(method, f"{self.url}/{path}", json=body, headers=headers)
        if answer.status_code in (401, 403):
            raise UserError(f"the server at {self.url} refuses this user ({answer.status_code}): {self.remedy}")
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _csrf_headers(self, client: Any) -> dict[str, str]:
        """Return headers with a CSRF token; none where the server does not use such tokens."""
        name = secrets.token_hex(16)
        answer = client.get(f"{self.url}/csrf-token", params={"client": name})
        if answer.is_server_error:
            answer.raise_for_status()  # without its token the request itself would be refused
        if answer.status_code != 200:
            return {}
        return {"Prefect-Csrf-Client": name, "Prefect-Csrf-Token": answer.json()["token"]}

    def filter_all(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return all rows that match a filter. The server answers in pages."""
        rows: list[dict[str, Any]] = []
        while True:
            page = self.send("POST", path, body | {"limit": PAGE, "offset": len(rows)})
            rows += page
            if len(page) < PAGE:
                return rows

    def active_runs(self) -> list[dict[str, Any]]:
        """Return the runs that a worker has taken and that have not ended."""
        return self.filter_all("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": list(ACTIVE)}}}})

    def cancel(self, run: str) -> None:
        """Cancel a run; a training stage saves a checkpoint first."""
        self.send("POST", f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})

    def worker_seen(self, pool: str, worker: str, since: datetime) -> bool:
        """Return whether a worker has sent the server a heartbeat since a moment."""
        rows = self.send("POST", f"work_pools/{pool}/workers/filter", {})
        return any(row["name"] == worker and _moment(row["last_heartbeat_time"]) >= since for row in rows)

    def paused(self, queue: str) -> bool:
        """Return whether workers start no new runs of `POOL` or `POOL/queues/QUEUE`, since it is paused or missing."""
        import httpx

        try:
            return bool(self.send("GET", f"work_pools/{queue}", None)["is_paused"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return True
            raise

    def pause(self, queue: str, value: bool) -> None:
        """Pause `POOL` or `POOL/queues/QUEUE`, or resume it."""
        self.send("PATCH", f"work_pools/{queue}", {"is_paused": value})


def answers(url: str) -> bool:
    """Return whether a GET request to an address succeeds."""
    import httpx

    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def _pauses(total: float) -> Iterator[float]:
    """Yield the seconds to wait before each repetition, `total` at most in sum."""
    pause = RETRY_SECONDS
    while total >= pause:
        yield pause
        total -= pause
        pause = min(2 * pause, LONGEST_PAUSE)


def _moment(text: str | None) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else datetime.min.replace(tzinfo=UTC)
