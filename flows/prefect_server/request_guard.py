"""Refuses requests that pages of other sites send to the web servers of `pretrieve up` and docker-compose.yml.

A page of any site can make a browser send requests to loopback. Prefect requires a password and a token against
forged requests; the checks that it lacks are here. A request whose Host header names another site is refused: a site
can have its own name resolve to 127.0.0.1, and would then count as the same origin. A request whose Origin header names
another site is refused too, also where it opens a websocket, which browsers let every page do.

Host names other than loopback's come from PREFECT_UI_URL, PRETRIEVE_REPORTS_URL and PRETRIEVE_HOSTS (separated by
commas). Origins other than the server's own come from Prefect's PREFECT_SERVER_CORS_ALLOWED_ORIGINS.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flows.prefect_server.login import LOGIN, LOGIN_PAGE, redeem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")  # one header's value, without user or path
HEADERS = {"X-Frame-Options": "DENY", "Referrer-Policy": "same-origin"}
LOGIN_HEADERS = HEADERS | {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; connect-src 'self'",
}


@dataclass(frozen=True)
class Callers:
    """The callers whose requests a server accepts."""

    hosts: frozenset[str]
    """Host names under which the server may be addressed."""
    origins: frozenset[str]
    """Origins of pages that may call it, in addition to its own."""

    def refusal(self, host: str | None, origin: str | None) -> tuple[int, str] | None:
        """Return the status and the reason for refusing a request with these headers; None where it may pass."""
        if not HOST.fullmatch(host or "") or _host_of(f"//{host}") not in self.hosts:
            return 400, "unknown Host header: add the name to PRETRIEVE_HOSTS of this server"
        if origin is None or origin in self.origins:
            return None
        own = {f"{scheme}://{host}".lower() for scheme in ("http", "https")}
        if origin.lower() in own:
            return None
        return 403, "foreign Origin header: pages of other sites may not call this server"


def callers(origins: str = "") -> Callers:
    """Return the callers of this process's server: hosts from its environment, and comma-separated `origins`."""
    addresses = (os.environ.get(name, "") for name in ("PREFECT_UI_URL", "PRETRIEVE_REPORTS_URL"))
    names = {_host_of(address) for address in addresses} | _listed(os.environ.get("PRETRIEVE_HOSTS", ""))
    return Callers(frozenset({"127.0.0.1", "localhost", "::1"} | names - {""}), frozenset(_listed(origins) - {"*"}))


def _host_of(address: str) -> str:
    """Return the host name of an address; "" where it has none."""
    with contextlib.suppress(ValueError):
        return (urlsplit(address).hostname or "").rstrip(".")
    return ""


def _listed(text: str) -> set[str]:
    return {value.strip().lower().rstrip("/") for value in text.split(",") if value.strip()}


class Guard:
    """An ASGI application behind the check of its callers, with the login page where `code` names a file."""

    def __init__(self, app: ASGIApp, allowed: Callers, code: Path | None, secret: str) -> None:
        self._app, self._allowed, self._code, self._secret = app, allowed, code, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request or a websocket, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._allowed.refusal(_header(scope, b"host"), _header(scope, b"origin"))
        if refused and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1]})  # 403 before it is open
        elif refused:
            await _answer(send, *refused, HEADERS)
        elif self._code and scope["type"] == "http" and scope["path"] == LOGIN:
            await self._log_in(scope["method"], receive, send)
        else:
            await self._app(scope, receive, partial(_with_headers, send))

    async def _log_in(self, method: str, receive: Receive, send: Send) -> None:
        if method == "GET":
            await _answer(send, 200, LOGIN_PAGE, LOGIN_HEADERS, "text/html")
        elif method == "POST" and self._code and redeem(self._code, await _body(receive)):
            await _answer(send, 200, self._secret, LOGIN_HEADERS)
        else:
            await _answer(send, 403, "this code is unknown, used or too old", LOGIN_HEADERS)


def _header(scope: Scope, name: bytes) -> str | None:
    """Return a header's value, all values if it is repeated, or None if it is missing."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values) if values else None


async def _body(receive: Receive) -> bytes:
    """Return a request's body, or the beginning of one that is longer than any code."""
    body, more = b"", True
    while more and len(body) < 1000:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(send: Send, status: int, text: str, headers: dict[str, str], kind: str = "text/plain") -> None:
    pairs = {"Content-Type": f"{kind}; charset=utf-8", **headers}.items()
    encoded = [(name.lower().encode(), value.encode()) for name, value in pairs]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": text.encode()})


async def _with_headers(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        message = {**message, "headers": [*message["headers"], *ours]}
    await send(message)
