"""Prefect's embedded server: the API for one run, without a UI, on loopback, with a random password.

It runs in a session of its own, so a signal to the run's process group (Slurm, systemd, Ctrl-C) does not end it while
the run still needs it. It ends with its standard input: the kernel closes that pipe however the run ends. Run as a
module, this file is that server.
"""

from __future__ import annotations

import atexit
import functools
import http.client
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from flows.prefect_server.locked_database import Repeated
from flows.prefect_server.request_guard import Guard, callers
from storage.errors import UserError
from tasks.runtime.prefect_task import EMBEDDED

ROOM = 16 << 20  # bytes; a new database with its write-ahead log takes 6 MB
SECONDS_TO_STOP = 3.0  # a server that stops in order writes what it has received
POLL_SECONDS = 0.1


class NotStarted(Exception):
    """The server ended before it could be used, or does not answer. The message is one line."""


@functools.cache
def start() -> None:
    """Start the server that Prefect's clients in this process use from now on, once, and wait until it answers.

    Raises `UserError` where its database has no room, and `NotStarted` where it does not answer.
    """
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    secret = f"pretrieve:{secrets.token_urlsafe(24)}"
    os.environ.update({"PREFECT_SERVER_API_AUTH_STRING": secret, "PREFECT_API_AUTH_STRING": secret})
    refresh_global_settings_context()
    settings = get_current_settings()
    require_room(settings.home)
    with socket.socket() as listener, tempfile.TemporaryFile() as log:
        listener.bind(("127.0.0.1", 0))
        port, number = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.prefect_server.embedded_server", str(number)], pass_fds=[number],
            env=_environment() | settings.to_environment_variables(exclude_unset=True),
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        listener.close()  # else the kernel would accept connections here after the server has ended
        try:
            _wait_until_it_answers(process, port, settings.server.ephemeral.startup_timeout_seconds, log)
        except BaseException:
            process.kill()
            process.wait()
            require_room(settings.home)
            raise
    # Prefect's own way to name an embedded server imports the complete server into this process, which takes 5 s.
    os.environ.update({EMBEDDED: "1", "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"})
    refresh_global_settings_context()
    atexit.register(_stop, process)


def require_room(folder: Path) -> None:
    """Raise `UserError` where the disk of a folder has no room for the server's database."""
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free < ROOM:
        raise UserError(
            f"{folder}: the disk is full; Prefect's database needs {ROOM >> 20} MB there; make room and run the same "
            "command again"
        )


def _environment() -> dict[str, str]:
    """Return this process's environment, with this project in the module path."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, seconds: float, log: IO[bytes]) -> None:
    deadline = time.monotonic() + seconds
    while not _answers(port):
        if process.poll() is not None:
            log.seek(0)
            lines = log.read().decode(errors="replace").split("\n")
            ended = f"it ended with status {process.returncode} and no message"
            raise NotStarted(f"Prefect's embedded server did not start: {next(filter(None, reversed(lines)), ended)}")
        if time.monotonic() > deadline:
            raise NotStarted(f"Prefect's embedded server did not answer within {seconds:g} s")
        time.sleep(POLL_SECONDS)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server in order, so that it writes what it has received."""
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(listener: int) -> None:
    """Run the server on a bound socket, by its descriptor, until standard input is closed or SIGTERM."""
    import uvicorn
    from prefect.server.api.server import create_app

    def follow() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()

    def app() -> Guard:
        return Guard(Repeated(create_app(ephemeral=True, final=True)), callers(), None, "")

    config = uvicorn.Config(app, factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
