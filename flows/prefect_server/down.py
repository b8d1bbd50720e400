"""`pretrieve down`: end what `pretrieve up` has started, the workers first, so that no run goes on unseen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.prefect_server.api import Api
from flows.prefect_server.pool_pause import paused
from flows.prefect_server.processes import end, running, stop, with_environment
from flows.prefect_server.services import Place, known_secret
from flows.prefect_server.up import OPTIONS, only_one
from storage.errors import UserError
from storage.store.store import Store

SECONDS_TO_CANCEL = 180.0  # a worker hears of it within 30; then a training stage saves a checkpoint
SECONDS_BETWEEN_LOOKS = 2.0


def down(store: Path, *, drain: bool = False, cancel: bool = False, force: bool = False) -> None:
    """End the services of a store.

    Where runs are under way: `drain` begins nothing new and waits for them, `cancel` has them save what they can and
    end, `force` ends them with their workers and asks no server; with none of these, a `UserError` names them and
    nothing is ended. Other commands are kept waiting only while processes end.
    """
    place = Place(Store.open_or_new(store).root)
    with only_one(place):
        now = running(place.folder)
    if not now:
        print(f"nothing runs for the store {place.store}")
    if "server" in now and not force:
        api = Api(f"{now['server'].url}/api", known_secret(place))
        _settle_runs(place, api, drain, cancel)
    elif not (cancel or force) and (left := _processes_of_runs(place)):
        raise UserError(
            f"the server has died, and {len(left)} processes of runs are there: `pretrieve up` starts it again; "
            "`pretrieve down --force` ends them, and Retry goes on where they stopped"
        )
    _end_workers(place)
    _end(place, "reports", "server")


def _settle_runs(place: Place, api: Api, drain: bool, cancel: bool) -> None:
    """Wait until nothing is under way, or raise a `UserError`; after draining, the workers have ended."""
    import httpx

    try:
        if drain:
            with paused(place, api):
                _wait_for_none(api, None)
                _end_workers(place)
        elif cancel:
            _cancel(api)
        elif runs := api.under_way():
            raise UserError(
                f"{_named(runs)} {'is' if len(runs) == 1 else 'are'} under way: `pretrieve down --drain` waits for "
                "the end, `pretrieve down --cancel` cancels; a cancelled run goes on, after Retry, where it stopped"
            )
    except httpx.HTTPError as error:
        raise UserError(
            f"the server at {api.url} does not answer ({type(error).__name__}), so nobody knows what is under way: try "
            "again, or end everything at once with `pretrieve down --force`; Retry goes on later where a run stopped"
        ) from None


def _cancel(api: Api) -> None:
    """Cancel what is under way, and wait until it has ended, but not for ever: a run's worker may be gone."""
    for run in api.under_way():
        api.cancel(run["id"])
    _wait_for_none(api, SECONDS_TO_CANCEL)


def _wait_for_none(api: Api, seconds: float | None) -> None:
    """Wait until nothing is under way, saying what is."""
    began, said = time.monotonic(), ""
    while runs := api.under_way():
        if (line := f"waiting for {_named(runs)}") != said:
            print(line, flush=True)
            said = line
        if seconds is not None and time.monotonic() - began > seconds:
            print(f"{_named(runs)} did not end in {seconds:.0f} s: ended with the worker")
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _named(runs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted(run["name"] for run in runs))


def _end_workers(place: Place) -> None:
    """End the workers at once, then whatever process of a run is left, also of a worker that had died before."""
    _end(place, *(name for name in running(place.folder) if name not in OPTIONS))
    if left := _processes_of_runs(place):
        print(f"{len(left)} processes of runs that had lost their worker: ended")
        end(left, left)


def _processes_of_runs(place: Place) -> list[Any]:
    """What `up`'s workers, and nobody else's, have started for runs, and what that has started."""
    ours = with_environment(PRETRIEVE_STORE=str(place.store), PREFECT_HOME=str(place.home))
    return [each for each in ours if _is_of_a_run(each)]


def _is_of_a_run(process: Any) -> bool:
    """Whether Prefect started it, or one that started it, for a flow run."""
    import psutil

    try:
        return "PREFECT__FLOW_RUN_ID" in process.environ()
    except psutil.Error:
        return False


def _end(place: Place, *names: str) -> None:
    """End those that run, all at once."""
    with only_one(place):
        now = running(place.folder)
        stop(place.folder, *(now[name] for name in names if name in now))
        for name in names:
            if name in now:
                print(f"{name}: ended")
