"""The few questions that commands ask of a Prefect server directly, without importing Prefect."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from storage.errors import UserError

UNDER_WAY = ("RUNNING", "PENDING", "CANCELLING")


@dataclass(frozen=True)
class Api:
    """A server's API. Methods raise httpx.HTTPError where it does not answer, `UserError` where it wants a password."""

    url: str
    """It ends with /api."""
    secret: str | None = None
    """user:password, where the server asks for one."""

    def healthy(self) -> bool:
        """Whether the server answers; it tells anybody."""
        return answers(f"{self.url}/health")

    def check(self) -> None:
        """A `UserError` where the server does not let us in, or does not answer at all."""
        import httpx

        try:
            self.send("GET", "admin/version", None)
        except httpx.HTTPError as error:
            raise UserError(
                f"the server at {self.url} does not answer ({type(error).__name__}): try again; `pretrieve down "
                "--force` ends everything"
            ) from None

    def send(self, method: str, path: str, body: Any) -> Any:
        """What it answers to a request, as JSON."""
        import httpx

        user, _, password = (self.secret or "").partition(":")
        client = httpx.Client(auth=(user, password) if self.secret else None, timeout=60)
        with client:
            headers = self._against_forgery(client) if method != "GET" else {}
            answer = client.request(method, f"{self.url}/{path}", json=body, headers=headers)
        if answer.status_code in (401, 403):
            raise UserError(
                f"the server at {self.url} refuses this user ({answer.status_code}): set "
                "PREFECT_SERVER_API_AUTH_STRING to the user:password that `pretrieve up` was started with "
                "(`pretrieve down --force` ends everything without asking the server)"
            )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _against_forgery(self, client: Any) -> dict[str, str]:
        """Headers with a token for a request that changes something; none where the server does not use them."""
        name = secrets.token_hex(16)
        answer = client.get(f"{self.url}/csrf-token", params={"client": name})
        if answer.status_code != 200:
            return {}
        return {"Prefect-Csrf-Client": name, "Prefect-Csrf-Token": answer.json()["token"]}

    def under_way(self) -> list[dict[str, Any]]:
        """Runs that a worker has taken and that have not ended."""
        wanted = {"flow_runs": {"state": {"type": {"any_": list(UNDER_WAY)}}}, "limit": 200}
        found: list[dict[str, Any]] = self.send("POST", "flow_runs/filter", wanted)
        return found

    def cancel(self, run: str) -> None:
        """Ask a run to end; a training stage saves a checkpoint first."""
        self.send("POST", f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})

    def heard_of(self, pool: str, worker: str, since: datetime) -> bool:
        """Whether a worker has told the server since then that it is there."""
        rows = self.send("POST", f"work_pools/{pool}/workers/filter", {})
        return any(row["name"] == worker and _moment(row["last_heartbeat_time"]) >= since for row in rows)

    def paused(self, pool: str) -> bool:
        """Whether nothing new of a pool is begun."""
        return bool(self.send("POST", "work_pools/filter", {"work_pools": {"name": {"any_": [pool]}}})[0]["is_paused"])

    def pause(self, pool: str, value: bool) -> None:
        """Begin nothing new of a pool, or begin again."""
        self.send("PATCH", f"work_pools/{pool}", {"is_paused": value})


def answers(url: str) -> bool:
    """Whether a page is there."""
    import httpx

    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def _moment(text: str | None) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else datetime.min.replace(tzinfo=UTC)
