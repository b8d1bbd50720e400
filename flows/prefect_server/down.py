"""`pretrieve down`: stop what `pretrieve up` has started, the workers first, so that no run continues unseen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.prefect_server.api import PATIENCE_SECONDS, Api
from flows.prefect_server.pool_pause import paused
from flows.prefect_server.processes import end, recorded, running, stop, with_environment
from flows.prefect_server.services import ServicePaths, known_secret
from flows.prefect_server.up import PORT_OPTIONS, only_one
from storage.errors import UserError
from storage.store.store import Store

SECONDS_TO_CANCEL = 180.0  # a worker learns of it within 30; then a training stage saves a checkpoint
POLL_SECONDS = 2.0
DRAIN_PATIENCE_SECONDS = 120.0  # a drain may wait for days


def down(store: Path, *, drain: bool = False, cancel: bool = False, force: bool = False) -> None:
    """Stop the services of a store.

    Where runs are active: `drain` starts no new run and waits for them, `cancel` cancels them, so that they save what
    they can, and `force` stops them with their workers, without the server. With none of these, a `UserError` names
    the runs and nothing is stopped. Other commands wait only while processes end.
    """
    paths = ServicePaths(Store.open_or_new(store).root)
    with only_one(paths):
        services = running(paths.folder)
    if not services:
        print(f"nothing runs for the store {paths.store}")
    if "server" in services and not force:
        patience = DRAIN_PATIENCE_SECONDS if drain else PATIENCE_SECONDS
        api = Api(f"{services['server'].url}/api", known_secret(paths), patience, outages=drain)
        _drain_or_cancel(paths, api, drain, cancel)
    elif not (cancel or force) and (orphans := _processes_of_runs(paths)):
        raise UserError(
            f"the server has died, and {len(orphans)} processes of runs still run: `pretrieve up` starts it again; "
            "`pretrieve down --force` ends them, and Retry resumes the runs"
        )
    with only_one(paths):  # no other command starts anything in between
        _end_workers(paths)
        _end(paths, "reports", "server")


def _drain_or_cancel(paths: ServicePaths, api: Api, drain: bool, cancel: bool) -> None:
    """Wait until no run is active, or raise a `UserError`; after draining, the workers have ended."""
    import httpx

    try:
        if drain:
            with paused(paths, api):
                _wait_for_runs(api, None)
                with only_one(paths):
                    _end_workers(paths)
        elif cancel:
            _cancel(api)
        elif runs := api.active_runs():
            raise UserError(
                f"{_named(runs)} {'is' if len(runs) == 1 else 'are'} active: `pretrieve down --drain` waits for "
                "the end, `pretrieve down --cancel` cancels; Retry resumes a cancelled run"
            )
    except httpx.HTTPError as error:
        raise UserError(
            f"the server at {api.url} does not answer ({type(error).__name__}), so active runs are not known: try "
            "again, or stop everything at once with `pretrieve down --force`; Retry resumes the runs later"
        ) from None


def _cancel(api: Api) -> None:
    """Cancel the active runs, and wait until they have ended, but not forever: a run's worker may have died."""
    for run in api.active_runs():
        api.cancel(run["id"])
    _wait_for_runs(api, SECONDS_TO_CANCEL)


def _wait_for_runs(api: Api, seconds: float | None) -> None:
    """Wait until no run is active, and print which are; give up after `seconds`, if given."""
    began, printed = time.monotonic(), ""
    while runs := api.active_runs():
        if (line := f"waiting for {_named(runs)}") != printed:
            print(line, flush=True)
            printed = line
        if seconds is not None and time.monotonic() - began > seconds:
            print(f"{_named(runs)} did not end in {seconds:.0f} s: ended with the worker")
            return
        time.sleep(POLL_SECONDS)


def _named(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted(run["name"] for run in runs))


def _end_workers(paths: ServicePaths) -> None:
    """Stop the workers at once, then the remaining processes of runs, also those whose worker had died before.

    Dead workers are forgotten, too: nothing is to start them again.
    """
    _end(paths, *(name for name in recorded(paths.folder) if name not in PORT_OPTIONS))
    if orphans := _processes_of_runs(paths):
        print(f"{len(orphans)} processes of runs that had lost their worker: ended")
        end(orphans, orphans)


def _processes_of_runs(paths: ServicePaths) -> list[Any]:
    """Return the processes that the workers of `up` have started for runs, with their children."""
    processes = with_environment(PRETRIEVE_STORE=str(paths.store), PREFECT_HOME=str(paths.home))
    return [process for process in processes if _belongs_to_run(process)]


def _belongs_to_run(process: Any) -> bool:
    """Return whether Prefect started the process, or one of its parents, for a flow run."""
    import psutil

    try:
        return "PREFECT__FLOW_RUN_ID" in process.environ()
    except psutil.Error:
        return False


def _end(paths: ServicePaths, *names: str) -> None:
    """Stop these services, all at once, where they run, and remove their records."""
    alive, services = running(paths.folder), recorded(paths.folder)
    stop(paths.folder, *(services[name] for name in names if name in services))
    for name in names:
        if name in alive:
            print(f"{name}: ended")
