"""Deployments of earlier versions, which had the names of their pools: their schedules move, then they are removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flows.prefect_server.api import ACTIVE
from flows.prefect_server.our_deployments import our_deployments

RENAMED = {
    ("reproduce", "cpu"): "reproduce", ("generate_queries", "cpu"): "generate-queries", ("pretrain", "cpu"): "pretrain",
    ("finetune", "cpu"): "finetune", ("evaluate", "cpu"): "evaluate", ("evaluate_models", "gpu"): "evaluate-models",
    ("run_stage", "gpu"): "run-stage",
}  # fmt: skip
"""The present name of each flow's deployment, by the flow's function and the earlier name."""


def remove_renamed(client: Any, report: Callable[[str], None]) -> None:
    """Move the schedules of our deployments that are named after a pool to those of the same flow, and delete the rest.

    One whose runs are active stays until the next registration, since these runs could not be retried without it.
    """
    ours = our_deployments(client)
    current = {(row.entrypoint, row.name): row for row in ours}
    for earlier in ours:
        function = (earlier.entrypoint or "").partition(":")[2]
        successor = current.get((earlier.entrypoint, RENAMED.get((function, earlier.name), "")))
        if successor is None or not _is_earlier(earlier, successor):
            continue
        _move_schedules(client, earlier, successor)
        name = f"{function}/{earlier.name}"
        if _is_active(client, earlier):
            report(f"deployment {name}: its runs are active; `pretrieve register` removes it when they have ended")
        else:
            client.delete_deployment(earlier.id)
            report(f"deployment {name}: removed; it is now {name.partition('/')[0]}/{successor.name}")


def _is_earlier(deployment: Any, successor: Any) -> bool:
    """Return whether an earlier version registered the deployment, and not an operator with settings of their own."""
    is_of_pool = deployment.work_pool_name == deployment.name
    return is_of_pool and not deployment.parameters and set(deployment.tags) == set(successor.tags)


def _move_schedules(client: Any, earlier: Any, successor: Any) -> None:
    """Move the schedules; one whose slug the successor has too replaces that one's content."""
    by_slug = {schedule.slug: schedule for schedule in successor.schedules if schedule.slug}
    for schedule in earlier.schedules:
        content = {"active": schedule.active, "parameters": schedule.parameters, "schedule": schedule.schedule}
        if existing := by_slug.get(schedule.slug):
            client.update_deployment_schedule(successor.id, existing.id, **content)
        else:
            _add_schedule(client, successor, schedule, content)
        client.delete_deployment_schedule(earlier.id, schedule.id)


def _add_schedule(client: Any, successor: Any, schedule: Any, content: dict[str, Any]) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    added = DeploymentScheduleCreate(slug=schedule.slug, **content)
    client.create_deployment_schedules(successor.id, [added])


def _is_active(client: Any, deployment: Any) -> bool:
    """Return whether a run of the deployment has been taken and has not ended."""
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterId,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    states = FlowRunFilterStateType(any_=[StateType(name) for name in ACTIVE])
    return bool(
        client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)),
            limit=1,
        )
    )
