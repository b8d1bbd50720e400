"""`pretrieve notify`: report runs that fail on a Prefect server, once each, by webhook and e-mail.

An automation of Prefect's acts at least once: its server repeats an action where it cannot note in its database that
the action was done, and evaluates an event again where its transaction fails. On a busy SQLite that gave two posts of
one run. This process looks for failed runs instead, and notes each one that it has reported with a label on the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flows.prefect_server.api import Api
from flows.prefect_server.automations import SILENT
from flows.prefect_server.messages import MAIL_TO, WEBHOOK, Mail, Webhook, recipients
from flows.prefect_server.services import HEARTBEAT_SECONDS
from storage.errors import UserError, masked, one_line
from tasks.runtime.formatting import duration

POLL_SECONDS = 10.0
REACH = timedelta(days=1)  # failures of this long before its start are reported, if no message was sent
SETTLED = timedelta(seconds=2 * HEARTBEAT_SECONDS)  # until a worker has taken back a run that lives
LABEL = "pretrieve.reported"
Sent = tuple[str, str, str]
"""A message that was sent: the run's id, its state's id, and the way."""
TAG, ON_SUCCESS = "pretrieve", "report"
"""Every run of ours has the first tag. One with the second is also reported when it completes."""
SUCCESS = "PRETRIEVE_REPORT_SUCCESS"
RETRY = "Retry on the run's page resumes it: finished stages, shards and checkpoints are kept."
TO_DO = {
    "FAILED": f"Fix what the message names. {RETRY} Where the recipe must change, start a new run.",
    "CRASHED": f"Its process, worker or machine has died: check memory and the worker. {RETRY}",
    "COMPLETED": "",
}


def notify(*, test: bool) -> None:
    """Report runs of the server that is named until the process is ended; or only send a `test` message."""
    channels = recipients()
    if not channels:
        raise UserError(f"no recipient of reports: set {WEBHOOK}, or {MAIL_TO} and PRETRIEVE_SMTP")
    if test:
        for channel in channels:
            channel.send("pretrieve: a test message", "Reports of failed runs will arrive here.")
        print(f"a test message was sent to {', '.join(type(channel).__name__.lower() for channel in channels)}")
        return
    from flows.prefect_server.register import check_server

    check_server()
    api = Api.of_settings(outages=True)
    print(f"reporting runs of {masked(api.url)}", flush=True)
    sent = set[Sent]()
    while True:
        report_all(api, channels, print, sent)
        time.sleep(POLL_SECONDS)


def report_all(
    api: Api, channels: Sequence[Webhook | Mail], print_line: Callable[[str], None], sent: set[Sent]
) -> None:
    """Report every run that has ended and was not reported. What fails now is tried again at the next call.

    `sent` is kept between calls: messages that were sent, though the server may not have noted it.
    """
    import httpx

    try:
        runs = ended_runs(api, success=bool(os.environ.get(SUCCESS)))
    except httpx.HTTPError as error:
        print_line(f"the server does not answer ({type(error).__name__}); trying again")
        return
    for run in runs:
        try:
            report(run, api, channels, print_line, sent)
        except httpx.HTTPError as error:
            print_line(f"{run['name']}: the server cannot note the report ({type(error).__name__}); trying again")


def report(
    run: dict[str, Any],
    api: Api,
    channels: Sequence[Webhook | Mail],
    print_line: Callable[[str], None],
    sent: set[Sent],
) -> None:
    """Send the messages of a run that were not sent, then note them on the run."""
    labels: dict[str, str] = {}
    for channel in channels:
        way = type(channel).__name__.lower()
        label, key = f"{LABEL}.{way}", (run["id"], run["state_id"], way)
        if run["labels"].get(label) == run["state_id"]:
            continue
        if key not in sent:
            try:
                channel.send(*message(run, api.url))
            except OSError as error:
                print_line(f"{run['name']}: could not be reported ({error}); trying again")
                continue
            sent.add(key)
            print_line(f"{run['name']}: reported as {run['state_name']} by {way}")
        labels[label] = run["state_id"]
    if labels:
        api.send("PATCH", f"flow_runs/{run['id']}/labels", labels)


def ended_runs(api: Api, *, success: bool) -> list[dict[str, Any]]:
    """Return the runs that have ended lately and are to be reported; a run's children are not."""
    kinds = {"FAILED": True, "CRASHED": True, "COMPLETED": success}
    rows = [row for kind, wanted in kinds.items() for row in _ended(api, kind, [TAG] if wanted else [TAG, ON_SUCCESS])]
    return [row for row in rows if not _may_be_taken_back(row)]


def _ended(api: Api, kind: str, tags: Sequence[str]) -> list[dict[str, Any]]:
    wanted = {
        "state": {"type": {"any_": [kind]}}, "tags": {"all_": list(tags)},
        "parent_task_run_id": {"is_null_": True}, "end_time": {"after_": (datetime.now(UTC) - REACH).isoformat()},
    }  # fmt: skip
    return api.filter_all("flow_runs/filter", {"flow_runs": wanted, "sort": "END_TIME_DESC"})


def _may_be_taken_back(run: dict[str, Any]) -> bool:
    """Return whether a run was called Crashed for its silence just now: its worker may still set it to Running."""
    since = datetime.now(UTC) - datetime.fromisoformat(run["state"]["timestamp"])
    return run["state"]["message"] == SILENT and since < SETTLED


def message(run: dict[str, Any], api: str) -> tuple[str, str]:
    """Return the subject and the text: what happened, what to do, and where the run's page is."""
    took = duration(run["total_run_time"]) if run["total_run_time"] else ""
    subject = one_line(f"pretrieve: {run['name']} is {run['state_name']}{f' after {took}' if took else ''}")
    ui = (os.environ.get("PREFECT_UI_URL") or api.removesuffix("/api")).rstrip("/").removesuffix("/v2")
    if os.environ.get("PREFECT_SERVER_UI_V2_ENABLED", "true").lower() not in ("false", "0"):
        ui += "/v2"  # Prefect's newer pages
    reason = run["state"]["message"] or ""
    lines = [reason, TO_DO[run["state_type"]], f"{ui}/runs/flow-run/{run['id']}"]
    return subject, "\n".join(filter(None, lines))
