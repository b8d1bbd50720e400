"""Serve the page of `pretrieve browse` on 127.0.0.1, with a token in its address, until Ctrl-C."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

from flows.browse.loading import contents_of
from flows.browse.searches import Searches
from flows.terminal import say
from storage.errors import UserError

HOST = "127.0.0.1"


def serve(run: str | None, store: Path, port: int) -> None:
    """Print the address and serve until the process is interrupted. Raises UserError for a port that is in use."""
    import uvicorn

    from flows.browse.application import application

    contents, token = contents_of(run, store), secrets.token_urlsafe(24)
    contents.check()
    searches = Searches(contents.store)
    with contextlib.closing(searches), _listening(port) as listening:
        app = application(contents, searches, token)
        say(f"{contents.title}: http://{HOST}:{listening.getsockname()[1]}/{token}/")
        say("Only this machine reaches the page, and only with this address. Ctrl-C ends it.")
        first = contents.collections[0]
        searches.warm_up(first, first.pair(contents.preferred))
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False,
                                timeout_graceful_shutdown=1)  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])


def _listening(port: int) -> socket.socket:
    """Return a socket on loopback. Raises UserError where the port is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; name another, or leave it out") from None
