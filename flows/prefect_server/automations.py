"""What the server does by itself: end runs whose worker has died, and tell somebody of a scheduled run that failed.

Automations are settled by name: one that is as it should be is left alone, with what it is watching just now, and one
that an operator has switched off stays off.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from storage.errors import UserError

ZOMBIES, NEVER_STARTED, WEBHOOK = "Crash zombie flows", "Crash runs that never start", "Tell of failed scheduled runs"
BLOCK = "pretrieve-webhook"
SILENCE = timedelta(seconds=90)  # three heartbeats of a worker's runs (PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30)
START = timedelta(hours=1)  # from a worker's taking a run to its first sign of life; a busy machine takes a minute
PAYLOAD = """{"text": {{ ("Scheduled run " ~ flow.name ~ " (" ~ flow_run.name ~ ") is " ~ flow_run.state.name ~ ": "
~ flow_run.state.message ~ "\n" ~ (flow_run|ui_url or flow_run.id)) | tojson }}}"""


def settle_automations(client: Any) -> list[str]:
    """Make the server's automations those of this module; what each is about, a line each.

    Without PRETRIEVE_WEBHOOK there is nobody to tell, and the webhook of an earlier registration is removed.
    """
    _settle(client, _crash_silent())
    _settle(client, _crash_unstarted())
    if url := os.environ.get("PRETRIEVE_WEBHOOK"):
        _settle(client, _tell(_keep_secret(url)))
        told = f"{WEBHOOK} (to PRETRIEVE_WEBHOOK)"
    else:
        _remove_webhook(client)
        told = "nobody is told of failed scheduled runs (PRETRIEVE_WEBHOOK is not set)"
    return [
        f"{ZOMBIES} (after {SILENCE.seconds} s without a heartbeat)",
        f"{NEVER_STARTED} (within {START.seconds // 60} minutes; not for pools whose runs wait longer in a queue)",
        told,
    ]


def _crash_silent() -> Any:
    """A run that beats no more, or was asked to cancel and is not heard of again, has lost its process."""
    message = "No heartbeat: the run's process or machine has died. Retry goes on where it stopped."
    return _crash(ZOMBIES, {"prefect.flow-run.heartbeat", "prefect.flow-run.Cancelling"}, SILENCE, message, message)


def _crash_unstarted() -> Any:
    """A worker that dies between taking a run and starting it leaves a run that never beats."""
    message = "A worker took this run and never started it: the worker has died. Retry starts it again."
    return _crash(
        NEVER_STARTED, {"prefect.flow-run.Pending"}, START, message,
        f"{message} Where a queue (Slurm, Kubernetes) holds runs back for more than {START.seconds // 60} minutes, "
        "switch this automation off; registering again leaves it off.",
    )  # fmt: skip


def _crash(name: str, after: set[str], within: timedelta, message: str, description: str) -> Any:
    """Set a run of our deployments Crashed that is not heard of in time after certain events."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    trigger = EventTrigger(
        after=after, expect={"prefect.flow-run.*"}, for_each={"prefect.resource.id"}, posture=Posture.Proactive,
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        match_related=_tagged("pretrieve"), threshold=1, within=within,
    )  # fmt: skip
    crash = ChangeFlowRunState(state=StateType.CRASHED, name=None, message=message, force=False)
    return AutomationCore(name=name, description=description, enabled=True, trigger=trigger, actions=[crash])


def _tell(block: Any) -> Any:
    """Post flow, run, state, message and link of a run that a schedule started and that did not end well."""
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    trigger = EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut")},
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        match_related=_tagged("auto-scheduled"), for_each={"prefect.resource.id"},
        posture=Posture.Reactive, threshold=1, within=timedelta(0),
    )  # fmt: skip
    return AutomationCore(
        name=WEBHOOK, description="Posts to the address in the block pretrieve-webhook.", enabled=True,
        trigger=trigger, actions=[CallWebhook(block_document_id=block, payload=PAYLOAD)],
    )  # fmt: skip


def _tagged(tag: str) -> Any:
    """What the events of a run with this tag are related to."""
    from prefect.events.schemas.events import ResourceSpecification

    return ResourceSpecification({"prefect.resource.role": ["tag"], "prefect.resource.id": [f"prefect.tag.{tag}"]})


def _settle(client: Any, wanted: Any) -> None:
    """Have exactly one automation of this name, as wanted, but switched off where it was."""
    found, *doubled = client.read_automations_by_name(wanted.name) or [None]
    for each in doubled:
        client.delete_automation(each.id)
    if found is None:
        client.create_automation(wanted)
    elif _content(found) != _content(wanted):
        wanted.enabled = found.enabled
        client.update_automation(found.id, wanted)


def _content(automation: Any) -> Any:
    """What an automation does, without ids that the server gives."""
    kept = {"name", "description", "trigger", "actions"}
    return automation.model_dump(include=kept, exclude={"trigger": {"id"}})


def _keep_secret(url: str) -> Any:
    """Keep the address as a secret on the server, under a name; returns the block's id."""
    from prefect.blocks.webhook import Webhook
    from prefect.types import SecretDict
    from pydantic import SecretStr

    if not url.startswith(("http://", "https://")):
        raise UserError("PRETRIEVE_WEBHOOK must be an address that begins with http:// or https://")
    headers = SecretDict({"Content-Type": "application/json"})
    return Webhook(url=SecretStr(url), headers=headers).save(BLOCK, overwrite=True)


def _remove_webhook(client: Any) -> None:
    from prefect.exceptions import ObjectNotFound

    for each in client.read_automations_by_name(WEBHOOK):
        client.delete_automation(each.id)
    try:
        block = client.read_block_document_by_name(BLOCK, "webhook", include_secrets=False)
    except ObjectNotFound:
        return
    client.delete_block_document(block.id)
