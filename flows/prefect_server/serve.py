"""The web servers of `pretrieve up` and of docker-compose.yml, which refuse requests that other sites' pages send.

    python -m flows.prefect_server.serve prefect --host 127.0.0.1 --port 4200
    python -m flows.prefect_server.serve reports --host 127.0.0.1 --port 4201 --directory STORE/reports

A browser sends to loopback whatever a page of any site has it send. Prefect asks for a password and a token against
forged requests; what it lacks is here. A request whose Host header names another site is refused: a site can have its
own name resolve to 127.0.0.1, and would then count as the same origin. So is one whose Origin header names another
site, also where it opens a websocket, which browsers let every page do.

Names other than loopback's are those of PREFECT_UI_URL, PRETRIEVE_REPORTS_URL and PRETRIEVE_HOSTS (with commas between
them). Origins other than the server's own are those of Prefect's PREFECT_SERVER_CORS_ALLOWED_ORIGINS.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import http.server
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")  # one header's value, and no user or path in it
LOGIN = "/pretrieve/login"
LOGIN_FILE = "PRETRIEVE_LOGIN"  # the file with the code that the login page accepts
HEADERS = {"X-Frame-Options": "DENY", "Referrer-Policy": "same-origin"}
LOGIN_HEADERS = HEADERS | {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; connect-src 'self'",
}
REPORTS_HEADERS = HEADERS | {
    "Content-Security-Policy": "script-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
# The code is in the address' fragment, which a browser sends to no server: it is in no log, and works once. Prefect's
# pages read the password from where this page puts it.
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8"><title>pretrieve</title>
<p id="state">Logging in.</p>
<script>
  const code = location.hash.slice(1)
  history.replaceState(null, "", location.pathname)
  fetch(location.pathname, {method: "POST", body: code}).then(async answer => {
    if (!answer.ok) throw new Error()
    localStorage.setItem("prefect-password", btoa(await answer.text()))
    location.replace("/v2/deployments")
  }).catch(() => {
    document.getElementById("state").textContent =
      "This address has been used, or is too old: `pretrieve up` prints a new one."
  })
</script>
"""


@dataclass(frozen=True)
class Callers:
    """Who may call a server."""

    hosts: frozenset[str]
    """Names under which it may be addressed."""
    origins: frozenset[str]
    """Origins of pages that may call it, besides its own."""

    def refusal(self, host: str | None, origin: str | None) -> tuple[int, str] | None:
        """Return the status and the reason for refusing a request with these headers; None where it may pass."""
        if not HOST.fullmatch(host or "") or _host_of(f"//{host}") not in self.hosts:
            return 400, "unknown Host header: add the name to PRETRIEVE_HOSTS of this server"
        if origin is None or origin in self.origins:
            return None
        own = {f"{scheme}://{host}".lower() for scheme in ("http", "https")}
        return (
            None
            if origin.lower() in own
            else (403, "foreign Origin header: pages of other sites may not call this server")
        )


def callers(origins: str = "") -> Callers:
    """Return who may call this process' server: names from its environment, and origins with commas between them."""
    addresses = (os.environ.get(name, "") for name in ("PREFECT_UI_URL", "PRETRIEVE_REPORTS_URL"))
    names = {_host_of(address) for address in addresses} | _listed(os.environ.get("PRETRIEVE_HOSTS", ""))
    return Callers(frozenset({"127.0.0.1", "localhost", "::1"} | names - {""}), frozenset(_listed(origins) - {"*"}))


def _host_of(address: str) -> str:
    """Return the host name of an address, "" where it has none."""
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
        """Pass a request or a websocket on, or refuse it."""
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
    """Return a header's value, all of its values where it comes more than once; None where it is missing."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values) if values else None


def redeem(file: Path, code: bytes) -> bool:
    """Whether the code is that of the file and not too old; it is used up then. Only one call for a code gets True."""
    try:
        issued = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return False
    if not hmac.compare_digest(issued["code"].encode(), code) or time.time() > issued["until"]:
        return False
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


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


def serve_prefect(host: str, port: int, services: bool) -> None:
    """Serve Prefect's API and UI, and run its background services, until SIGTERM. A password is required."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    server = get_current_settings().server
    if not server.api.auth_string:
        sys.exit("PREFECT_SERVER_API_AUTH_STRING is not set: set it to the user:password that clients give")
    code, secret = os.environ.get(LOGIN_FILE), server.api.auth_string.get_secret_value()
    app, allowed = create_app(final=True, webserver_only=not services), callers(server.api.cors_allowed_origins)
    uvicorn.run(
        Guard(app, allowed, Path(code) if code else None, secret), host=host, port=port, server_header=False,
        log_level=server.logging_level.lower(), timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval, ws_ping_timeout=server.api.websocket_ping_timeout,
    )  # fmt: skip


class ReportsHandler(http.server.SimpleHTTPRequestHandler):
    """Files below a folder, for callers of our own; nothing that a symbolic link there leads out to."""

    def __init__(self, *given: Any, directory: str, allowed: Callers) -> None:
        self._allowed = allowed
        super().__init__(*given, directory=directory)

    def send_head(self) -> Any:
        """Refuse, or begin the answer as the base class does, to GET and HEAD alike."""
        if refused := self._allowed.refusal(self.headers.get("Host"), self.headers.get("Origin")):
            self.send_error(*refused)
            return None
        if not Path(self.translate_path(self.path)).resolve().is_relative_to(Path(self.directory).resolve()):
            self.send_error(404)
            return None
        return super().send_head()

    def end_headers(self) -> None:
        """Add the headers that keep a report from running scripts and from being framed."""
        for name, value in REPORTS_HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def serve_reports(host: str, port: int, folder: Path) -> None:
    """Serve the files below a folder until SIGTERM."""
    handler = partial(ReportsHandler, directory=str(folder), allowed=callers())
    with http.server.ThreadingHTTPServer((host, port), handler) as server:
        server.serve_forever()


def main(arguments: Sequence[str]) -> None:
    """Run the server that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m flows.prefect_server.serve")
    servers = parser.add_subparsers(dest="server", required=True)
    prefect, reports = servers.add_parser("prefect"), servers.add_parser("reports")
    for each in (prefect, reports):
        each.add_argument("--host", default="127.0.0.1")
        each.add_argument("--port", type=int, required=True)
    prefect.add_argument("--no-services", action="store_true", help="leave the background services to another process")
    reports.add_argument("--directory", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.server == "prefect":
        serve_prefect(given.host, given.port, not given.no_services)
    else:
        serve_reports(given.host, given.port, given.directory)


if __name__ == "__main__":
    main(sys.argv[1:])
