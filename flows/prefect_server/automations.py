"""Prefect automations: crash runs whose worker has died.

Automations are registered by name. One that is up to date is not touched, so it keeps the runs that it watches, and one
that an operator has switched off stays off.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

ZOMBIES, NEVER_STARTED, WEBHOOK = "Crash zombie flows", "Crash runs that never start", "Tell of failed scheduled runs"
BLOCK = "pretrieve-webhook"
SILENT = "No heartbeat: the run's process or machine has died. Retry resumes it."
SILENCE = timedelta(seconds=90)  # three heartbeats of a worker's runs (PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30)
START = timedelta(hours=1)  # from taking a run to its first heartbeat; a busy machine takes a minute


def register_automations(client: Any) -> list[str]:
    """Register the automations of this module, and return a line that describes each of them.

    The notification of earlier versions is removed: `pretrieve notify` reports failed runs.
    """
    _settle(client, _crash_silent())
    _settle(client, _crash_unstarted())
    _remove_webhook(client)
    return [
        f"{ZOMBIES} (after {SILENCE.seconds} s without a heartbeat)",
        f"{NEVER_STARTED} (within {START.seconds // 60} minutes; not for pools whose runs wait longer in a queue)",
    ]


def _crash_silent() -> Any:
    """Crash runs whose process is lost: they send no heartbeat, or no event after they were cancelled."""
    return _crash(ZOMBIES, {"prefect.flow-run.heartbeat", "prefect.flow-run.Cancelling"}, SILENCE, SILENT, SILENT)


def _crash_unstarted() -> Any:
    """Crash runs that a worker took but never started, since it died in between; they send no heartbeat at all."""
    message = "A worker took this run and never started it: the worker has died. Retry starts it again."
    return _crash(
        NEVER_STARTED, {"prefect.flow-run.Pending"}, START, message,
        f"{message} Where a queue (Slurm, Kubernetes) holds runs back for more than {START.seconds // 60} minutes, "
        "switch this automation off; registering again leaves it off.",
    )  # fmt: skip


def _crash(name: str, after: set[str], within: timedelta, message: str, description: str) -> Any:
    """Return an automation that sets our runs to Crashed where no event follows those of `after` in time."""
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


def _tagged(tag: str) -> Any:
    """Return the resource that the events of runs with this tag are related to."""
    from prefect.events.schemas.events import ResourceSpecification

    return ResourceSpecification({"prefect.resource.role": ["tag"], "prefect.resource.id": [f"prefect.tag.{tag}"]})


def _settle(client: Any, wanted: Any) -> None:
    """Have exactly one automation of this name, as wanted, but switched off where it was switched off."""
    existing, *duplicates = client.read_automations_by_name(wanted.name) or [None]
    for duplicate in duplicates:
        client.delete_automation(duplicate.id)
    if existing is None:
        client.create_automation(wanted)
    elif _content(existing) != _content(wanted):
        wanted.enabled = existing.enabled
        client.update_automation(existing.id, wanted)


def _content(automation: Any) -> Any:
    """Return what an automation does, without the ids that the server assigns."""
    kept = {"name", "description", "trigger", "actions"}
    return automation.model_dump(include=kept, exclude={"trigger": {"id"}})


def _remove_webhook(client: Any) -> None:
    """Remove the notification of earlier versions, which acted twice where the server was busy."""
    from prefect.exceptions import ObjectNotFound

    for automation in client.read_automations_by_name(WEBHOOK):
        client.delete_automation(automation.id)
    try:
        block = client.read_block_document_by_name(BLOCK, "webhook", include_secrets=False)
    except ObjectNotFound:
        return
    client.delete_block_document(block.id)
