"""`pretrieve up`: a Prefect server, workers for both pools and the reports' pages, in this machine's background."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from flows.prefect_server.api import Api, answers
from flows.prefect_server.pool_pause import unpause
from flows.prefect_server.processes import Background, known, running, start
from flows.prefect_server.services import (
    AUTH,
    Place,
    close_folders,
    gpus_here,
    login_address,
    reports_command,
    server_command,
    server_environment,
    worker_environment,
    workers,
)
from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.store.store import Store

PORT = 4200
OPTIONS = {"server": "--port", "reports": "--reports-port"}
SECONDS_TO_START = 300.0  # an idle machine takes ten
SECONDS_BETWEEN_LOOKS = 0.5


def up(store: Path, port: int | None, reports_port: int | None) -> None:
    """Start what does not run yet, register the deployments, and say where it is. A `UserError` names what failed."""
    opened = Store.open_or_new(store)
    opened.mark()
    place = Place(opened.root)
    with only_one(place):
        before, earlier = running(place.folder), known(place.folder)
        port = _port_of("server", port, before, earlier) or _free(PORT, "--port")
        reports_port = _port_of("reports", reports_port, before, earlier) or _free(port + 1, "--reports-port")
        env = worker_environment(place, port, reports_port)
        api = Api(env["PREFECT_API_URL"], env["PREFECT_API_AUTH_STRING"])
        _serve(place, before, port, reports_port, api)
        api.check()
        missing = {name: each for name, each in workers(gpus_here()).items() if name not in before}
        if "server" not in before or missing:  # an `up` that was interrupted may not have come as far as that
            _register(env)
        unpause(place, api)
        _work(place, missing, env, api)
    _say(place, before, port, reports_port)


@contextmanager
def only_one(place: Place) -> Iterator[None]:
    """No other `up` or `down` for this store runs in this block; it is waited for."""
    close_folders(place)
    with (place.folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another `pretrieve up` or `down` is at work; waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _port_of(
    name: str, wanted: int | None, before: dict[str, Background], earlier: dict[str, Background]
) -> int | None:
    """The port where a service runs, or is to run: the one asked for, or where it ran before it died; else None.

    Workers that run know where it ran, so it cannot come back elsewhere.
    """
    option = OPTIONS[name]
    if name in before:
        port = before[name].port
        if wanted not in (None, port):
            raise UserError(f"{option} {wanted}: the {name} runs on port {port}; `pretrieve down` ends it first")
        return port
    if name in earlier:
        port = earlier[name].port
        if wanted not in (None, port) and before.keys() - OPTIONS.keys():
            raise UserError(
                f"{option} {wanted}: the workers that run know the {name} on port {port}; leave {option} out, or end "
                "them first with `pretrieve down`"
            )
        wanted = wanted or port
    return wanted and _free(wanted, option)


def _free(port: int, option: str) -> int:
    """The port, on which nobody listens; else a `UserError`."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OverflowError:
            raise UserError(f"port {port}: the highest is 65535; choose another with {option}") from None
        except OSError as error:
            raise UserError(f"port {port}: {error.strerror}; choose another with {option}") from None
    return port


def _serve(place: Place, before: dict[str, Background], port: int, reports_port: int, api: Api) -> None:
    """Start the server and the reports' pages, and wait for both."""
    (place.store / "reports").mkdir(parents=True, exist_ok=True)
    env, where = server_environment(place, port), _address(reports_port)
    if "reports" not in before:
        reports = start(place.folder, place.log("reports"), "reports", reports_command(place, reports_port), env, where)
        _wait(place, reports, partial(answers, where))
    if "server" not in before:
        server = start(place.folder, place.log("server"), "server", server_command(port), env, _address(port))
        _wait(place, server, api.healthy)


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _register(env: dict[str, str]) -> None:
    """`pretrieve register`, with the environment of a worker."""
    done = subprocess.run([sys.executable, "-m", "flows.cli", "register"], cwd=PROJECT, env=env, capture_output=True)
    if done.returncode:
        raise UserError(f"registering the deployments failed: {done.stderr.decode(errors='replace').strip()}")


def _work(place: Place, missing: dict[str, tuple[list[str], dict[str, str]]], env: dict[str, str], api: Api) -> None:
    """Start these workers, and wait until the server has heard of them."""
    since = datetime.now(UTC)
    started = [
        start(place.folder, place.log(name), name, command, env | more) for name, (command, more) in missing.items()
    ]
    for worker in started:
        _wait(place, worker, partial(api.heard_of, worker.name.partition("-")[0], worker.name, since))


def _wait(place: Place, one: Background, ready: Callable[[], bool]) -> None:
    """Wait until a service is ready, with a line that says so; a `UserError` when it ends, or takes too long."""
    began = time.monotonic()
    while not ready():
        seconds = time.monotonic() - began
        print(f"\r{one.name}: starting ({seconds:.0f} s)", end="", file=sys.stderr, flush=True)
        if not one.process():
            raise UserError(f"{one.name} ended: {_last_line(place, one)}; see {place.log(one.name)}")
        if seconds > SECONDS_TO_START:
            raise UserError(f"{one.name} did not start in {SECONDS_TO_START:.0f} s; see {place.log(one.name)}")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    print(f"\r{one.name}: runs" + " " * 20, file=sys.stderr)


def _last_line(place: Place, one: Background) -> str:
    lines = place.log(one.name).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _say(place: Place, before: dict[str, Background], port: int, reports_port: int) -> None:
    """Where everything is, and what to do next."""
    now, server = running(place.folder), _address(port)
    if now.keys() == before.keys():
        print(f"already running, for the store {place.store}")
    print(f"Prefect:  {server}")
    print(f"workers:  {', '.join(name for name in now if name not in ('server', 'reports'))}")
    print(f"reports:  {_address(reports_port)}")
    print(f"logs:     {place.log('*')}")
    print(f"Open:     {login_address(place, server)}")
    print("          This address enters the password. It works once, for 15 minutes; `pretrieve up` prints another.")
    print("          Choose reproduce and run it; `pretrieve down` ends everything.")
    given = os.environ.get(AUTH)
    password = (
        "the server's PREFECT_SERVER_API_AUTH_STRING" if given else f'"$(cat {shlex.quote(str(place.password))})"'
    )
    print(f"For commands of your own:  export PREFECT_API_URL={server}/api PREFECT_API_AUTH_STRING={password}")
