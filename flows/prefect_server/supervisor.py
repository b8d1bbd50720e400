"""Start again the services of `pretrieve up` that have died: `python -m flows.prefect_server.supervisor STORE`.

It ends where `pretrieve down` has removed its record. A service that dies again and again is no longer started after a
while, so that a broken one neither fills the disk with its output nor takes the processor from the runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from flows.prefect_server.processes import recorded, running, start
from flows.prefect_server.services import ServicePaths, service_environment
from flows.prefect_server.up import OPTIONS, SUPERVISOR, only_one

POLL_SECONDS = 5.0
MOST_STARTS = 10  # of one service
WITHIN_SECONDS = 3600.0


def supervise(paths: ServicePaths) -> None:
    """Start again what has died, until this process is no longer the recorded supervisor."""
    starts = defaultdict[str, list[float]](list)
    while (own := recorded(paths.folder).get(SUPERVISOR)) and own.pid == os.getpid():
        for name in dead(paths):
            starts[name] = [moment for moment in starts[name] if time.monotonic() - moment < WITHIN_SECONDS]
            if len(starts[name]) < MOST_STARTS:
                starts[name].append(time.monotonic())
                try:
                    start_again(paths, name)
                except OSError as error:  # such as a full disk
                    print(f"{name} could not be started again: {error}", flush=True)
        time.sleep(POLL_SECONDS)


def dead(paths: ServicePaths) -> list[str]:
    """Return the names of the services that have died; only the server where it has, since the workers need it."""
    alive = running(paths.folder)
    names = [name for name, service in recorded(paths.folder).items() if name not in alive and service.command]
    return ["server"] if "server" in names else names


def start_again(paths: ServicePaths, name: str) -> None:
    """Start a service that has died, unless `pretrieve up` or `down` have dealt with it meanwhile."""
    with only_one(paths):
        services = recorded(paths.folder)
        service, server = services.get(name), services.get("server")
        if service is None or server is None or service.process() is not None:
            return
        env = service_environment(name, paths, server.port) if name in OPTIONS else dict(os.environ)
        begun = start(paths.folder, paths.log(name), name, service.command, env, service.url)
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {name} had died: started again as process {begun.pid}", flush=True
    )


if __name__ == "__main__":
    supervise(ServicePaths(Path(sys.argv[1])))
