"""`pretrieve metrics` with a real Prometheus: it scrapes, its rules and the dashboard's queries find our metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from storage.store.store import Store
from tests.ports import free_port
from tests.services.servers import (
    PRETRIEVE,
    ROOT,
    Service,
    environment,
    start,
    start_run,
    stopping,
    wait_for,
)
from tests.storage.published import publish

MONITORING = ROOT / "docs" / "monitoring"


def promtool(*words: str, given: str = "") -> None:
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with an artifact, a damaged one and an interrupted build."""
    result = Store(tmp_path / "store")
    result.mark()
    for version in (1, 2):
        work = result.work("made", "new")
        work.mkdir(parents=True)
        (work / "file").write_text("x" * 1000)
        artifact = publish(result, version=version)
    (artifact.path / "file").write_text("shorter")
    (result.work("other", "0" * 24)).mkdir()
    return result


@pytest.fixture
def scraped(store: Store, server: Service, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus with our configuration that scrapes the metrics of the store and the server."""
    ours, port = free_port(), free_port()
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(MONITORING / name, tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("4202", str(ours)).replace("30s", "2s"))
    with ExitStack() as stack:
        command = [*PRETRIEVE, "metrics", "--store", str(store.root), "--port", str(ours)]
        env = environment(tmp_path, PREFECT_API_URL=server.url)
        stack.enter_context(stopping(start("metrics", command, env, tmp_path / "metrics.log")))
        listening = f"--web.listen-address=127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", listening]
        stack.enter_context(stopping(start("prometheus", command, env, tmp_path / "prometheus.log")))
        yield f"http://127.0.0.1:{port}/api/v1"


def query(api: str, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{api}/query", params={"query": expression}, timeout=60).raise_for_status().json()
    assert answer["status"] == "success"
    return list(answer["data"]["result"])


def value(api: str, expression: str) -> float:
    """The value of an expression with one result, once there is one."""
    rows = wait_for(lambda: query(api, expression), 2, expression)
    assert rows
    return float(rows[0]["value"][1])


def test_prometheus_reads_store_and_server(scraped: str, server: Service) -> None:
    start_run(server.url, "run_stage/run-stage", recipe="quickstart", stage="0123")

    assert value(scraped, 'pretrieve_artifacts{stage="made"}') == 1
    assert value(scraped, 'pretrieve_artifact_bytes{stage="made"}') == 1000
    assert value(scraped, 'pretrieve_build_seconds{stage="made"}') == 1
    assert value(scraped, "pretrieve_damaged_artifacts") == 1
    assert value(scraped, 'pretrieve_work_folders{state="interrupted"}') == 1
    assert value(scraped, "pretrieve_disk_free_bytes") > 0
    assert value(scraped, "pretrieve_server_up") == 1
    assert wait_for(lambda: value(scraped, 'pretrieve_queue_length{pool="gpu"}') == 1, 1, "the run is queued")
    assert value(scraped, 'pretrieve_flow_runs{state="scheduled"}') >= 1
    rules = httpx.get(f"{scraped}/rules", timeout=60).json()["data"]["groups"][0]["rules"]
    assert {rule["name"] for rule in rules if rule["health"] != "err"} == alert_names()
    firing = wait_for(lambda: query(scraped, "ALERTS{alertstate='firing'}"), 2, "the damaged artifact's alert")
    assert firing
    assert {row["metric"]["alertname"] for row in firing} == {"PretrieveDamagedArtifact"}


def alert_names() -> set[str]:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    return {rule["alert"] for rule in rules}


def test_promtool_accepts_metrics_rules_and_configuration(store: Store, server: Service, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "metrics", "--store", str(store.root)]
    env = environment(tmp_path, PREFECT_API_URL=server.url)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)

    promtool("check", "metrics", given=done.stdout)
    promtool("check", "rules", str(MONITORING / "alerts.yml"))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))
    used = (MONITORING / "alerts.yml").read_text() + (MONITORING / "dashboard.json").read_text()
    known = set(re.findall(r"^# TYPE (pretrieve_\w+) gauge$", done.stdout, re.MULTILINE))
    assert set(re.findall(r"pretrieve_\w+", used)) <= known
    assert len(known) == 16


def test_every_query_of_the_dashboard_is_valid(scraped: str) -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]

    value(scraped, "pretrieve_damaged_artifacts")
    for panel in panels:
        for target in panel["targets"]:
            query(scraped, target["expr"])
