"""Start again the services of `pretrieve up` that have died: `python -m flows.prefect_server.supervisor STORE`.

It ends where `pretrieve down` has removed its record. A service is started at most `MOST_STARTS` times an hour, so that
a broken one neither fills the disk with its output nor takes the processor from the runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flows.prefect_server.processes import recorded, running, start
from flows.prefect_server.services import ServicePaths, service_environment
from flows.prefect_server.up import PORT_OPTIONS, SUPERVISOR, only_one

POLL_SECONDS = 5.0
MOST_STARTS = 10  # of one service
WITHIN_SECONDS = 3600.0


def supervise(paths: ServicePaths) -> None:
    """Start again what has died, until this process is no longer the recorded supervisor."""
    starts = Starts()
    with only_one(paths):  # `up` holds it until it has recorded this process
        pass
    while (own := recorded(paths.folder).get(SUPERVISOR)) and own.pid == os.getpid():
        for name in dead(paths):
            if starts.allowed(name, paths.log(name)):
                try:
                    start_again(paths, name)
                except OSError as error:  # such as a full disk
                    print(f"{name} could not be started again: {error}", flush=True)
        time.sleep(POLL_SECONDS)


class Starts:
    """The starts of each service within the last hour."""

    def __init__(self) -> None:
        self._moments = defaultdict[str, list[float]](list)
        self._refused = set[str]()

    def allowed(self, name: str, log: Path) -> bool:
        """Return whether a service may be started now, and count the start; print once from when on it may be again."""
        now = time.monotonic()
        moments = self._moments[name] = [moment for moment in self._moments[name] if now - moment < WITHIN_SECONDS]
        if len(moments) < MOST_STARTS:
            moments.append(now)
            self._refused.discard(name)
            return True
        if name not in self._refused:
            self._refused.add(name)
            again = datetime.now(UTC) + timedelta(seconds=WITHIN_SECONDS - (now - moments[0]))
            print(
                f"{name} died {MOST_STARTS} times within an hour: not started again before {again:%H:%M} UTC; "
                f"see {log}", flush=True,
            )  # fmt: skip
        return False


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
        env = service_environment(name, paths, server.port) if name in PORT_OPTIONS else dict(os.environ)
        begun = start(paths.folder, paths.log(name), name, service.command, env, service.url)
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {name} had died: started again as process {begun.pid}", flush=True
    )


if __name__ == "__main__":
    supervise(ServicePaths(Path(sys.argv[1])))
