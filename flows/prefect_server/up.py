"""`pretrieve up`: a Prefect server, workers for both pools and the reports' pages, in the background."""

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
from flows.prefect_server.databases import ADDRESS, VISIBLE, choose_database, sqlite_warning
from flows.prefect_server.messages import from_environment, recipients
from flows.prefect_server.pool_pause import unpause
from flows.prefect_server.processes import Background, forget, recorded, running, start, stop
from flows.prefect_server.services import (
    AUTH,
    ServicePaths,
    close_folders,
    local_gpus,
    login_address,
    notifier_command,
    reports_command,
    server_command,
    service_environment,
    supervisor_command,
    worker_environment,
    workers,
)
from flows.recipe.shipped import PROJECT
from storage.errors import UserError, masked
from storage.store.store import Store

PORT = 4200
UNSET = "PRETRIEVE_WEBHOOK and PRETRIEVE_MAIL_TO are not set"
PORT_OPTIONS = {"server": "--port", "reports": "--reports-port"}
SUPERVISOR, NOTIFIER = "supervisor", "notifier"
WATCHERS = {SUPERVISOR, NOTIFIER}
SECONDS_TO_START = 300.0  # an idle machine takes ten
POLL_SECONDS = 0.5
ERROR = " | ERROR "  # in a line of Prefect's logs


def up(store: Path, port: int | None, reports_port: int | None, database: str | None = None) -> None:
    """Start the services that do not run yet, register the deployments, and print the addresses.

    `database` is the address of a PostgreSQL for the server, or `sqlite`; else PRETRIEVE_DATABASE has it. Without both
    the server keeps the database that it has.
    Raises `UserError` where a service does not start.
    """
    opened = Store.open_or_new(store)
    opened.mark()
    paths = ServicePaths(opened.root)
    if database and database != masked(database):
        print(VISIBLE, file=sys.stderr, flush=True)
    with only_one(paths):
        running_services, recorded_services = running(paths.folder), recorded(paths.folder)
        choose_database(database or from_environment(ADDRESS) or None, paths, "server" in running_services)
        channels = recipients()
        port = _port_of("server", port, running_services, recorded_services) or _free(PORT, "--port")
        reports_port = _port_of("reports", reports_port, running_services, recorded_services) or _free(
            port + 1, "--reports-port"
        )
        env = worker_environment(paths, port, reports_port)
        api = Api(env["PREFECT_API_URL"], env["PREFECT_API_AUTH_STRING"])
        _start_servers(paths, running_services, port, reports_port, api)
        api.check()
        wanted = workers(local_gpus())
        missing = {name: worker for name, worker in wanted.items() if name not in running_services}
        forget(paths.folder, recorded_services.keys() - running_services.keys() - wanted.keys() - PORT_OPTIONS.keys())
        if "server" not in running_services or missing:  # an interrupted `up` may not have registered them
            _register(env)
        unpause(paths, api)
        _start_workers(paths, missing, env, api)
        _restart_watchers(paths, running_services, env, bool(channels))
        unreported = (
            [run["name"] for run in api.active_runs()] if NOTIFIER in recorded_services and not channels else None
        )
        _print_addresses(paths, running_services, port, reports_port, unreported)


@contextmanager
def only_one(paths: ServicePaths) -> Iterator[None]:
    """Wait for another `up` or `down` of this store, and keep others waiting during the block."""
    close_folders(paths)
    with (paths.folder / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another `pretrieve up` or `down` is active; waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _port_of(
    name: str, requested: int | None, running_services: dict[str, Background], recorded_services: dict[str, Background]
) -> int | None:
    """Return the port where a service runs or is to run: the requested one, or its port before it died; else None.

    Running workers keep using the earlier address, so the service cannot move to another port.
    """
    option = PORT_OPTIONS[name]
    if name in running_services:
        port = running_services[name].port
        if requested not in (None, port):
            raise UserError(f"{option} {requested}: the {name} runs on port {port}; `pretrieve down` ends it first")
        return port
    if name in recorded_services:
        port = recorded_services[name].port
        if requested not in (None, port) and running_services.keys() - PORT_OPTIONS.keys() - WATCHERS:
            raise UserError(
                f"{option} {requested}: the running workers use the {name} on port {port}; leave {option} out, or stop "
                "them first with `pretrieve down`"
            )
        requested = requested or port
    return requested and _free(requested, option)


def _free(port: int, option: str) -> int:
    """Return the port. Raises `UserError` where it is in use."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OverflowError:
            raise UserError(f"port {port}: the highest is 65535; choose another with {option}") from None
        except OSError as error:
            raise UserError(f"port {port}: {error.strerror}; choose another with {option}") from None
    return port


def _start_servers(
    paths: ServicePaths, running_services: dict[str, Background], port: int, reports_port: int, api: Api
) -> None:
    """Start the Prefect server and that of the reports' pages, and wait for both."""
    (paths.store / "reports").mkdir(parents=True, exist_ok=True)
    commands = {"reports": reports_command(paths, reports_port), "server": server_command(port)}
    addresses = {"reports": _address(reports_port), "server": _address(port)}
    for name, ready in (("reports", partial(answers, addresses["reports"])), ("server", api.healthy)):
        if name not in running_services:
            env = service_environment(name, paths, port)
            begun = start(paths.folder, paths.log(name), name, commands[name], env, addresses[name])
            _wait(paths, begun, ready)


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _register(env: dict[str, str]) -> None:
    """Run `pretrieve register` with the environment of a worker."""
    print("registering pools, deployments and automations …", file=sys.stderr, flush=True)
    command = [sys.executable, "-u", "-m", "flows.cli", "register"]
    with subprocess.Popen(
        command, cwd=PROJECT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        lines = [""]
        for line in process.stdout or ():
            lines.append(line.strip())
            print(f"  {lines[-1]}", file=sys.stderr, flush=True)
    if process.returncode:
        raise UserError(f"registering the deployments failed: {lines[-1]}")


def _restart_watchers(
    paths: ServicePaths, running_services: dict[str, Background], env: dict[str, str], notify: bool
) -> None:
    """Start the supervisor and, where wanted, the process that reports failed runs, with the present environment.

    A supervisor that lives would start others again with the environment of the `up` that started it.
    """
    stop(paths.folder, *(running_services[name] for name in WATCHERS if name in running_services))
    start(paths.folder, paths.log(SUPERVISOR), SUPERVISOR, supervisor_command(paths), env)
    if notify:
        start(paths.folder, paths.log(NOTIFIER), NOTIFIER, notifier_command(), env)


def _start_workers(paths: ServicePaths, missing: dict[str, list[str]], env: dict[str, str], api: Api) -> None:
    """Start these workers, and wait until the server has received their heartbeats."""
    since = datetime.now(UTC)
    started = [start(paths.folder, paths.log(name), name, command, env) for name, command in missing.items()]
    for worker in started:
        _wait(paths, worker, partial(api.worker_seen, worker.name.partition("-")[0], worker.name, since))


def _wait(paths: ServicePaths, service: Background, ready: Callable[[], bool]) -> None:
    """Wait until a service is ready. Raises `UserError` where it ends, or takes too long.

    A terminal shows a line with the seconds; a log gets a line once it runs.
    """
    began, is_terminal = time.monotonic(), sys.stderr.isatty()
    while not ready():
        seconds = time.monotonic() - began
        if is_terminal:
            print(f"\r{service.name}: starting ({seconds:.0f} s)", end="", file=sys.stderr, flush=True)
        if not service.process():
            raise UserError(f"{service.name} ended: {_reason(paths, service)}; see {paths.log(service.name)}")
        if seconds > SECONDS_TO_START:
            raise UserError(f"{service.name} did not start in {SECONDS_TO_START:.0f} s; see {paths.log(service.name)}")
        time.sleep(POLL_SECONDS)
    print(f"\r{service.name}: runs" + " " * 20 if is_terminal else f"{service.name}: runs", file=sys.stderr, flush=True)


def _reason(paths: ServicePaths, service: Background) -> str:
    """Return the first line of a service's output that is an error, since others follow from it; else the last."""
    output = paths.log(service.name).read_bytes()[service.log_offset :]
    lines = output.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if ERROR in line), lines[-1] if lines else "no output")


def _print_addresses(
    paths: ServicePaths, running_services: dict[str, Background], port: int, reports_port: int,
    unreported: list[str] | None,
) -> None:  # fmt: skip
    """Print where the services are, and what to do next.

    `running_services` already ran before; `unreported` are active runs that were to be reported.
    """
    services, server = running(paths.folder), _address(port)
    if services.keys() - WATCHERS == running_services.keys() - WATCHERS:
        print(f"already running, for the store {paths.store}")
    print(f"Prefect:  {server}")
    print(f"workers:  {', '.join(sorted(services.keys() - PORT_OPTIONS.keys() - WATCHERS))}")
    print(f"reports:  {_address(reports_port)}")
    print(f"logs:     {paths.log('*')}")
    print(f"failures: {_reporting(NOTIFIER in services, unreported)}")
    if warning := sqlite_warning(paths, len(services.keys() - PORT_OPTIONS.keys() - WATCHERS)):
        print(f"database: {warning}")
    print(f"Open:     {login_address(paths, server)}")
    print("          This address enters the password. It works once, for 15 minutes; `pretrieve up` prints another.")
    print("          Choose reproduce and run it; `pretrieve down` stops everything.")
    password = f'"$(cat {shlex.quote(str(paths.password))})"'
    if os.environ.get(AUTH):
        password = "the server's PREFECT_SERVER_API_AUTH_STRING"
    print(f"For commands of your own:  export PREFECT_API_URL={server}/api PREFECT_API_AUTH_STRING={password}")


def _reporting(is_on: bool, unreported: list[str] | None) -> str:
    """Return in words whether failures are reported, and which active runs no longer are."""
    if is_on:
        return "by webhook or e-mail (`pretrieve notify --test` tries it)"
    if unreported is None:
        return f"not reported: {UNSET}"
    runs = f" ({', '.join(sorted(unreported))} among them)" if unreported else ""
    return f"no longer reported{runs}, as they were until now: {UNSET}; set them and run `pretrieve up` again"
