"""`pretrieve down`: end what `pretrieve up` has started, the workers first, so that no run goes on unseen."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.api import Api
from flows.background import Background, end, running, stop, with_environment
from flows.services import Place
from flows.up import only_one
from storage.errors import UserError

SECONDS_TO_CANCEL = 180.0  # a worker hears of it within 30; then a training stage saves a checkpoint
SECONDS_BETWEEN_LOOKS = 2.0


def down(store: Path, drain: bool, cancel: bool) -> None:
    """End the services of a store.

    Where runs are under way: `drain` begins nothing new and waits for them, `cancel` has them save what they can and
    end; with neither, a `UserError` names them and nothing is ended.
    """
    place = Place(store.resolve())
    with only_one(place):
        now = running(place.folder)
        if not now:
            print(f"nothing runs for the store {place.store}")
        api = (
            Api(f"{now['server'].url}/api", os.environ.get("PREFECT_SERVER_API_AUTH_STRING"))
            if "server" in now
            else None
        )
        paused: list[str] = []
        if api and api.healthy():
            if drain:
                paused = _drain(api)
            elif cancel:
                _cancel(api)
            elif runs := api.under_way():
                raise UserError(
                    f"{_named(runs)} {'is' if len(runs) == 1 else 'are'} under way: `pretrieve down --drain` waits for "
                    "the end, `pretrieve down --cancel` cancels; a cancelled run goes on, after Retry, where it stopped"
                )
        _end_workers(place, now)
        if api:
            for pool in paused:
                api.pause(pool, False)
        for name in ("reports", "server"):
            _end(place, now, name)


def _drain(api: Api) -> list[str]:
    """Begin nothing new, and wait for what is under way; the pools that were paused for it.

    The gpu pool goes on: what is under way on the cpu pool waits for stages there.
    """
    paused = [pool for pool in ("cpu",) if not api.paused(pool)]
    for pool in paused:
        api.pause(pool, True)
    _wait_for_none(api, None)
    return paused


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


def _end_workers(place: Place, now: dict[str, Background]) -> None:
    """End the workers at once, then whatever process of a run is left, also of a worker that had died before."""
    for name in now:
        if name not in ("server", "reports"):
            _end(place, now, name)
    left = [each for each in with_environment(PRETRIEVE_STORE=str(place.store)) if _is_of_a_run(each)]
    if left:
        print(f"{len(left)} processes of runs that had lost their worker: ended")
        end(left, left)


def _is_of_a_run(process: Any) -> bool:
    """Whether Prefect started it, or one that started it, for a flow run."""
    import psutil

    try:
        return "PREFECT__FLOW_RUN_ID" in process.environ()
    except psutil.Error:
        return False


def _end(place: Place, now: dict[str, Background], name: str) -> None:
    if name in now:
        stop(place.folder, now[name])
        print(f"{name}: ended")
