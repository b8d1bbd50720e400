"""`pretrieve register`: register work pools, deployments and automations with the server at PREFECT_API_URL.

Each is registered by its name, so that registering again changes nothing. What an operator has changed on the server
stays: a pool's type, limit and settings (process, Kubernetes, Slurm), additional schedules, and whether the schedule or
an automation is switched on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from flows.prefect_server.api import Api
from flows.prefect_server.our_deployments import our_deployments
from flows.recipe.shipped import PROJECT
from storage.errors import UserError

POOLS = {"cpu": "Runs of recipes, and their stages that need no GPU.", "gpu": "Stages that need a GPU, one a worker."}
ACTIVE_RUNS = {"cpu": 8}  # of a pool at a time; more would wait for the GPU pool anyway


def register_all(print_line: Callable[[str], None] = print) -> None:
    """Register everything, and print what. Raises `UserError` where the server does not answer or refuses the user."""
    from prefect.client.orchestration import get_client

    from flows.prefect_server.automations import register_automations
    from flows.prefect_server.renamed_deployments import remove_renamed

    check_server()
    with get_client(sync_client=True) as client:
        for name, description in POOLS.items():
            _create_pool(client, name, description)
        _name_schedules(client)
        switched_on = _schedules_switched_on(client)
        try:
            deployments = _deploy()
        finally:
            _switch_on(client, switched_on)
        print_line(f"work pools: {', '.join(POOLS)}")
        print_line(f"deployments: {', '.join(deployments)}")
        remove_renamed(client, print_line)
        for line in register_automations(client):
            print_line(f"automation: {line}")


def check_server() -> None:
    """Raise `UserError` where the server that the settings name does not answer, or refuses the user."""
    import httpx

    api = Api.of_settings(patience_seconds=0.0)
    try:
        api.send("GET", "admin/version", None)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UserError(
            f"PREFECT_API_URL={api.url} does not answer ({type(error).__name__}): start the server, or correct the "
            "address"
        ) from None
    except (httpx.HTTPStatusError, ValueError) as error:
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else "no JSON"
        raise UserError(f"PREFECT_API_URL={api.url} is no Prefect API ({status}); it ends with /api") from None


def _create_pool(client: Any, name: str, description: str) -> None:
    """Create a pool of local processes with its limit, unless there is a pool of this name."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(
        name=name, type="process", description=description, base_job_template=template,
        concurrency_limit=ACTIVE_RUNS.get(name),
    )  # fmt: skip
    try:
        client.create_work_pool(pool)
    except ObjectAlreadyExists:
        return


def _deploy() -> list[str]:
    """Have Prefect deploy prefect.yaml; return the deployments' names as `flow/name`."""
    import yaml

    file = PROJECT / "prefect.yaml"
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    if done.returncode:
        message = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise UserError(f"{file} could not be deployed: {message}")
    listed = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
    return [f"{entry['entrypoint'].partition(':')[2]}/{entry['name']}" for entry in listed]


def _schedules(client: Any) -> list[tuple[str, Any]]:
    """Return the schedules of our deployments, each with the id of its deployment."""
    return [
        (str(deployment.id), schedule) for deployment in our_deployments(client) for schedule in deployment.schedules
    ]


def _name_schedules(client: Any) -> None:
    """Give a slug to schedules without one, since deploying removes all schedules of a deployment otherwise."""
    for deployment, schedule in _schedules(client):
        if not schedule.slug:
            _update(client, deployment, schedule, slug=f"schedule-{schedule.id}")


def _schedules_switched_on(client: Any) -> list[tuple[str, str]]:
    """Return deployment id and slug of the active schedules, since deploying resets them to prefect.yaml."""
    return [(deployment, schedule.slug) for deployment, schedule in _schedules(client) if schedule.active]


def _switch_on(client: Any, wanted: list[tuple[str, str]]) -> None:
    for deployment, schedule in _schedules(client):
        if (deployment, schedule.slug) in wanted and not schedule.active:
            _update(client, deployment, schedule, active=True)


def _update(client: Any, deployment: str, schedule: Any, **changes: Any) -> None:
    """Change a schedule. Its parameters are sent with the change, since the server deletes them otherwise."""
    client.update_deployment_schedule(deployment, schedule.id, parameters=schedule.parameters, **changes)
