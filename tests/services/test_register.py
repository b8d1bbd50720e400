"""Registering twice leaves one of each and keeps what was decided; each failed run is reported once."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import warm
from tests.ports import free_port
from tests.services.servers import (
    PRETRIEVE,
    ROOT,
    Service,
    call,
    environment,
    post,
    register,
    run_of,
    start,
    start_run,
    start_server,
    stopping,
    wait_for,
    wait_for_end,
)

DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


def deployments(url: str) -> dict[str, dict[str, Any]]:
    """By `flow/name`; the flow's name is its function's."""
    return {f"{row['entrypoint'].partition(':')[2]}/{row['name']}": row for row in post(url, "deployments")}


def test_every_deployment_is_there_with_pool_and_form(server: Service) -> None:
    results = deployments(server.url)

    assert set(results) == {
        "reproduce/reproduce", "generate_queries/generate-queries", "pretrain/pretrain", "finetune/finetune",
        "evaluate/evaluate", "run_stage/run-stage", "evaluate_models/evaluate-models", "matrix/matrix",
    }  # fmt: skip
    for row in results.values():
        [listed] = [deployment for deployment in DEPLOYMENTS if deployment["entrypoint"] == row["entrypoint"]]
        assert row["work_pool_name"] == listed["work_pool"]["name"]
        assert row["work_queue_name"] == listed["work_pool"].get("work_queue_name", "default")
        assert row["name"] == row["entrypoint"].partition(":")[2].replace("_", "-")
        assert row["global_concurrency_limit"] is None  # its lease would end runs when the server restarts
        assert set(row["tags"]) >= {"pretrieve"}
        assert row["pull_steps"][0]["prefect.deployments.steps.set_working_directory"]["directory"] == (
            "{{ $PRETRIEVE_HOME }}"
        )
        parameter = {"evaluate_models": "suite", "matrix": "recipes"}.get(row["entrypoint"].partition(":")[2], "recipe")
        assert parameter in row["parameter_openapi_schema"]["properties"]
        assert row["job_variables"] == {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}
    [weekly] = results["reproduce/reproduce"]["schedules"]
    assert (weekly["slug"], weekly["active"], weekly["schedule"]["timezone"]) == ("weekly", False, "UTC")
    assert (ROOT / "configs" / f"{weekly['parameters']['recipe']}.yaml").is_file()
    assert {row["name"]: row["concurrency_limit"] for row in post(server.url, "work_pools")} == {"cpu": 8, "gpu": None}


def test_registering_again_changes_nothing_and_keeps_what_was_decided(server: Service, tmp_path: Path) -> None:
    url, reproduce = server.url, deployments(server.url)["reproduce/reproduce"]
    weekly = f"{url}/deployments/{reproduce['id']}/schedules/{reproduce['schedules'][0]['id']}"
    parameters = reproduce["schedules"][0]["parameters"]
    assert parameters
    call("PATCH", weekly, json={"active": True, "parameters": parameters}).raise_for_status()
    own = {"interval": 86400.0, "anchor_date": "2026-01-01T00:00:00Z", "timezone": "UTC"}
    mine = {"schedule": own, "active": True, "parameters": {"recipe": "quickstart"}}  # no slug, as the UI allows
    for name in ("reproduce/reproduce", "evaluate/evaluate"):
        add = f"{url}/deployments/{deployments(url)[name]['id']}/schedules"
        call("POST", add, json=[mine]).raise_for_status()
    zombies = next(row for row in post(url, "automations") if row["name"] == "Crash zombie flows")
    before = {(row["id"], row["updated"]) for row in post(url, "automations")}
    call("PATCH", f"{url}/work_pools/cpu", json={"concurrency_limit": 9}).raise_for_status()
    pools = {(row["id"], row["concurrency_limit"]) for row in post(url, "work_pools")}
    earlier = f"{url}/deployments/{reproduce['id']}"
    call("PATCH", earlier, json={"concurrency_limit": 4}).raise_for_status()  # as an earlier version registered it

    said = register(url, tmp_path).stdout

    assert {row["id"] for row in deployments(url).values()} >= {reproduce["id"]}
    assert len(post(url, "deployments")) == 8
    for name, count in (("reproduce/reproduce", 2), ("evaluate/evaluate", 1)):
        schedules = {
            deployment["parameters"]["recipe"]: deployment for deployment in deployments(url)[name]["schedules"]
        }
        assert len(schedules) == count
        kept = schedules["quickstart"]
        assert (kept["schedule"]["interval"], kept["active"]) == (86400.0, True)
        call("DELETE", f"{url}/deployments/{kept['deployment_id']}/schedules/{kept['id']}").raise_for_status()
    [weekly_now] = deployments(url)["reproduce/reproduce"]["schedules"]
    assert (weekly_now["slug"], weekly_now["active"], weekly_now["parameters"]) == ("weekly", True, parameters)
    assert {(row["id"], row["concurrency_limit"]) for row in post(url, "work_pools")} == pools
    assert deployments(url)["reproduce/reproduce"]["global_concurrency_limit"] is None
    assert {(row["id"], row["updated"]) for row in post(url, "automations")} == before
    assert "reproduce/reproduce" in said
    call("PATCH", weekly, json={"active": False, "parameters": parameters}).raise_for_status()

    # A changed automation is mended, and one that was switched off stays off.
    changed = {**zombies, "enabled": False, "description": "something else"}
    call("PUT", f"{url}/automations/{zombies['id']}", json=without_ids(changed)).raise_for_status()
    register(url, tmp_path)
    [mended] = [row for row in post(url, "automations") if row["name"] == "Crash zombie flows"]
    assert (mended["id"], mended["description"], mended["enabled"]) == (zombies["id"], zombies["description"], False)
    call("PATCH", f"{url}/automations/{zombies['id']}", json={"enabled": True}).raise_for_status()


def without_ids(automation: dict[str, Any]) -> dict[str, Any]:
    """An automation as the server takes it."""
    kept = {name: automation[name] for name in ("name", "description", "enabled", "actions")}
    return kept | {"trigger": {name: value for name, value in automation["trigger"].items() if name != "id"}}


@pytest.fixture
def listener() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """An address with a secret path, and what is posted to it."""
    received: queue.Queue[dict[str, Any]] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put({"path": self.path, "type": self.headers["Content-Type"], "body": json.loads(body)})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}/services/T0/xyzzy-secret", received
    listening.shutdown()
    listening.server_close()


def test_each_failed_run_is_reported_once(
    server: Service,
    worker: Callable[..., Service],
    listener: tuple[str, queue.Queue[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    url, (address, received) = server.url, listener
    register(url, tmp_path)
    command = [*PRETRIEVE, "notify"]
    env = environment(tmp_path, PREFECT_API_URL=url, PRETRIEVE_WEBHOOK=address)
    notifier = start("notifier", command, env, tmp_path / "logs" / "notifier.log")
    with stopping(notifier):
        cpu = worker("cpu", "cpu-0", tmp_path / "store")
        # They fail at once, with quotes, braces and a line's end in what they say.
        failing = {"recipe": "quickstart", "until": 'no "such" {{ stage }}\n'}
        by_hand = start_run(url, "reproduce/reproduce", **failing)
        scheduled = start_run(url, "reproduce/reproduce", tags=tags_of_a_scheduled_run(url), **failing)
        ended = {run: wait_for_end(url, run, 3) for run in (by_hand, scheduled)}
        wait_for(lambda: received.qsize() >= 2, 2, "both runs are reported")
        reported = notifier.said().count("reported as Failed by webhook")
        wait_for(lambda: run_of(url, scheduled)["labels"], 1, "the report is noted")

    messages = list(received.queue)
    beats = wait_for(lambda: beats_of(url, scheduled), 2, "the run has sent a heartbeat")
    assert {"prefect.resource.role": "tag", "prefect.resource.id": "prefect.tag.pretrieve"} in beats[0]["related"]
    assert reported <= len(messages) == 2
    for run, row in ended.items():
        assert row["state_name"] == "Failed"
        [message] = [message for message in messages if f"/runs/flow-run/{run}" in message["body"]["text"]]
        assert (message["path"], message["type"]) == ("/services/T0/xyzzy-secret", "application/json")
        for part in (row["name"], "Failed", 'no "such" {{ stage }}', "Retry"):
            assert part in message["body"]["text"]
    # The address is a secret: in no log.
    for said in (json.dumps(post(url, "logs")), server.said(), cpu.said(), notifier.said()):
        assert "xyzzy" not in said


def beats_of(url: str, run: str) -> list[dict[str, Any]]:
    """The signs of life of a run."""
    wanted = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    results = call("POST", f"{url}/events/filter", json={"filter": wanted}).raise_for_status().json()
    events: list[dict[str, Any]] = results["events"]
    return events


def tags_of_a_scheduled_run(url: str) -> list[str]:
    """What Prefect's scheduler puts on a run: a schedule is added, and removed when the first run is there."""
    reproduce = deployments(url)["reproduce/reproduce"]["id"]
    tomorrow = {"schedule": {"interval": 86400.0}, "active": True, "slug": "tomorrow"}
    added = call("POST", f"{url}/deployments/{reproduce}/schedules", json=[tomorrow])
    [schedule] = added.raise_for_status().json()
    runs = wait_for(lambda: post(url, "flow_runs", flow_runs={"tags": {"all_": ["auto-scheduled"]}}), 2, "a run")
    call("DELETE", f"{url}/deployments/{reproduce}/schedules/{schedule['id']}").raise_for_status()
    tags: list[str] = runs[0]["tags"]
    return tags


def refused(home: Path, **more: str) -> str:
    """What `pretrieve register` says where it refuses."""
    done = warm.run(home, "register", **more)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


def test_what_is_wrong_with_a_server_is_one_line(tmp_path: Path) -> None:
    closed = f"http://127.0.0.1:{free_port()}/api"

    assert "PREFECT_API_URL is not set" in refused(tmp_path)
    assert closed in refused(tmp_path, PREFECT_API_URL=closed)
    locked = start_server(tmp_path / "locked", PREFECT_SERVER_API_AUTH_STRING="someone:hunter2")
    with stopping(locked):
        assert "PREFECT_API_AUTH_STRING" in refused(tmp_path, PREFECT_API_URL=locked.url)
        wrong = refused(tmp_path, PREFECT_API_URL=locked.url, PREFECT_API_AUTH_STRING="someone:swordfish")
        assert "401" in wrong
        assert "swordfish" not in wrong
        assert "ends with /api" in refused(
            tmp_path, PREFECT_API_URL=locked.url.removesuffix("/api"), PREFECT_API_AUTH_STRING="someone:hunter2"
        )
