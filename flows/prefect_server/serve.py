"""The web servers of `pretrieve up` and of docker-compose.yml: Prefect's, and one for the reports' pages.

    python -m flows.prefect_server.serve prefect --host 127.0.0.1 --port 4200
    python -m flows.prefect_server.serve reports --host 127.0.0.1 --port 4201 --directory STORE/reports

Both refuse requests of other sites' pages (`flows.prefect_server.request_guard`).
"""

from __future__ import annotations

import argparse
import http.server
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flows.prefect_server.login import LOGIN_FILE
from flows.prefect_server.request_guard import HEADERS, Callers, Guard, callers
from flows.prefect_server.run_check import RunCheck, warm_up

REPORTS_HEADERS = HEADERS | {
    "Content-Security-Policy": "script-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


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
    guarded = Guard(RunCheck(app, secret), allowed, Path(code) if code else None, secret)
    threading.Thread(target=warm_up, daemon=True, name="run check").start()
    uvicorn.run(
        guarded, host=host, port=port, server_header=False,
        log_level=server.logging_level.lower(), timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval, ws_ping_timeout=server.api.websocket_ping_timeout,
    )  # fmt: skip


class ReportsHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the files below a folder to allowed callers, and nothing outside it that a symbolic link points to."""

    def __init__(self, *arguments: Any, directory: str, allowed: Callers) -> None:
        self._allowed = allowed
        super().__init__(*arguments, directory=directory)

    def send_head(self) -> Any:
        """Refuse a GET or HEAD request, or begin the answer as the base class does."""
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
    for server in (prefect, reports):
        server.add_argument("--host", default="127.0.0.1")
        server.add_argument("--port", type=int, required=True)
    prefect.add_argument("--no-services", action="store_true", help="leave the background services to another process")
    reports.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.server == "prefect":
        serve_prefect(options.host, options.port, not options.no_services)
    else:
        serve_reports(options.host, options.port, options.directory)


if __name__ == "__main__":
    main(sys.argv[1:])
