"""Names on a server: runs show what they run, and deployments of an earlier version are replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.services.servers import Service, call, post, register, run_of, wait_for_end

FAILING = {"recipe": "quickstart", "changes": ["seed=7"], "until": "no-such-stage"}


def start_named(url: str, name: str | None) -> str:
    """Start a run that fails at once, with a name of its own where given; its id."""
    row = call("GET", f"{url}/deployments/name/reproduce/reproduce").raise_for_status().json()
    body = {"parameters": FAILING, "state": {"type": "SCHEDULED"}} | ({"name": name} if name else {})
    created = call("POST", f"{url}/deployments/{row['id']}/create_flow_run", json=body)
    return str(created.raise_for_status().json()["id"])


def test_a_run_has_the_operators_name_or_shows_recipe_seed_and_changes(
    server: Service, worker: Callable[..., Service], tmp_path: Path
) -> None:
    worker("cpu", "cpu-0", tmp_path / "store", limit=None)
    runs = [start_named(server.url, name) for name in ("before the upgrade", "Sleek-Zebra", None)]

    for run in runs:
        assert wait_for_end(server.url, run, 3)["state_name"] == "Failed"

    assert [run_of(server.url, run)["name"] for run in runs] == [
        "before the upgrade", "quickstart seed=7", "quickstart seed=7",
    ]  # fmt: skip


def add_earlier(url: str, flow: str, **own: Any) -> dict[str, Any]:
    """Create the deployment of a flow as versions before the renaming registered it, or with `own` settings."""
    row = call("GET", f"{url}/deployments/name/{flow}/{flow}").raise_for_status().json()
    kept = ("flow_id", "entrypoint", "tags", "work_pool_name", "parameter_openapi_schema")
    created = call("POST", f"{url}/deployments/", json={"name": "cpu"} | {name: row[name] for name in kept} | own)
    return dict(created.raise_for_status().json())


def test_schedules_of_an_earlier_version_move_to_the_renamed_deployment(server: Service, tmp_path: Path) -> None:
    url, earlier = server.url, add_earlier(server.url, "reproduce")
    own = {"schedule": {"interval": 86400.0}, "active": True, "slug": "own", "parameters": {"recipe": "quickstart"}}
    weekly = {"schedule": {"interval": 604800.0}, "active": True, "slug": "weekly", "parameters": {"recipe": "came"}}
    call("POST", f"{url}/deployments/{earlier['id']}/schedules", json=[own, weekly]).raise_for_status()
    active = add_earlier(url, "pretrain")
    add_earlier(url, "finetune", parameters={"recipe": "came"})  # of an operator, who happened to choose this name
    body = {"state": {"type": "RUNNING"}, "parameters": {}}
    run = call("POST", f"{url}/deployments/{active['id']}/create_flow_run", json=body).raise_for_status().json()["id"]

    said = register(url, tmp_path).stdout

    assert "reproduce/cpu: removed; it is now reproduce/reproduce" in said
    assert "pretrain/cpu: its runs are active" in said
    names = sorted(f"{row['entrypoint'].partition(':')[2]}/{row['name']}" for row in post(url, "deployments"))
    assert "reproduce/cpu" not in names
    assert {"pretrain/cpu", "finetune/cpu"} <= set(names)
    successor = call("GET", f"{url}/deployments/name/reproduce/reproduce").json()
    schedules = {row["slug"]: row for row in successor["schedules"]}
    assert set(schedules) == {"own", "weekly"}
    assert all(row["active"] for row in schedules.values())
    assert schedules["own"]["parameters"] == {"recipe": "quickstart"}
    assert schedules["weekly"]["parameters"] == {"recipe": "came"}
    assert schedules["weekly"]["schedule"]["interval"] == 604800.0

    done = {"state": {"type": "COMPLETED"}, "force": True}
    call("POST", f"{url}/flow_runs/{run}/set_state", json=done).raise_for_status()
    assert "pretrain/cpu: removed" in register(url, tmp_path).stdout
