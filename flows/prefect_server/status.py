"""`pretrieve status`: which services of `pretrieve up` run for a store."""

from __future__ import annotations

from pathlib import Path

import typer

from flows.prefect_server.processes import Background, recorded, running
from flows.prefect_server.services import ServicePaths
from flows.prefect_server.up import PORT_OPTIONS, SUPERVISOR
from flows.terminal import say
from storage.store.store import Store


def status(store: Path) -> None:
    """Print the services of a store with their processes, addresses and logs; change nothing.

    Raises typer.Exit(1) where none or not all of them run, after a line that says what to do.
    """
    paths = ServicePaths(Store.open_or_new(store).root)
    started, alive = recorded(paths.folder), running(paths.folder)
    if not alive:
        say(f"nothing runs for the store {paths.store}; `pretrieve up` starts the server and its workers")
        raise typer.Exit(1)
    # The supervisor starts last, so it is missing where `up` was interrupted before its workers.
    names = [*PORT_OPTIONS, *sorted(started.keys() - PORT_OPTIONS.keys() - {SUPERVISOR}), SUPERVISOR]
    width = max(map(len, names))
    for name in names:
        say(f"{name:<{width}}  {_state(alive.get(name))}  log: {paths.log(name)}")
    if missing := [name for name in names if name not in alive]:
        say(f"not running: {', '.join(missing)}; `pretrieve up` starts what has ended")
        raise typer.Exit(1)


def _state(service: Background | None) -> str:
    """Return a service's process and address in words."""
    if service is None:
        return "does not run"
    return f"runs as process {service.pid}{f' at {service.url}' if service.url else ''}"
