"""What a real Prefect server holds of a run that shows its progress, its manifest, its metrics, lineage and report."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect_server.ui_artifacts import link_report, show_lineage, show_metrics
from storage.files import write_atomically
from storage.store.store import Store
from storage.tables import Report
from tasks.runtime import prefect_progress
from tasks.runtime.progress import progress
from tasks.session import Session, session
from tasks.stage import stage
from tests.services.servers import Service, call, post, wait_for

pytestmark = pytest.mark.slow

REPORT = {
    "recipe": {"recipe": "small/slow", "title": "A slow recipe"}, "headline": {"main": "dense"},
    "rows": [{"run": "dense", "metric": "MRR@10", "value": 0.38, "split": "dev", "queries": 6980}],
    "reported": {"source": "Table 1"},
    "beside": [{"run": "dense", "metric": "MRR@10", "ours": 0.38, "theirs": 0.394}],
}  # fmt: skip


@stage(version=1, table=Report)
def slow(out: Path) -> None:
    """Take a second and a half."""
    for number in progress(range(30), what="waiting", unit="steps", total=30):
        time.sleep(0.05)
        if number == 25 and (out.parent.parent / "fault").exists():
            raise ValueError("a fault")
    write_atomically(out / "report.json", json.dumps(REPORT))


@pytest.fixture
def server(prefect_server: Service) -> Iterator[Service]:
    """A Prefect server, which this process reports to."""
    with temporary_settings({PREFECT_API_URL: prefect_server.url}):
        yield prefect_server


@pytest.fixture(autouse=True)
def _watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_progress, "SECONDS_UNTIL_SHOWN", 0.3)
    monkeypatch.setattr(prefect_progress, "SECONDS_BETWEEN_LOOKS", 0.3)
    monkeypatch.setattr(prefect_progress, "SECONDS_FOR_THE_LAST_WORD", 60.0)  # a busy machine's server is slow


def run(folder: Path) -> Session:
    """The stage, and all that is shown of a run, as a flow does it."""
    current = Session(Store(folder))

    @flow(persist_result=False)
    def small() -> None:
        with session(current):
            built = slow()
        page = current.store.root / "reports" / "small" / "slow" / "report.html"
        write_atomically(page.with_suffix(".json"), (built.path / "report.json").read_text())
        show_metrics(page.with_suffix(".json"))
        show_lineage("small/slow", list(current.done.values()))
        link_report(page)

    small()
    return current


def artifacts(server: Service) -> dict[str, dict[str, Any]]:
    """The newest of each key that this file has made."""
    wanted = {"artifacts": {"key": {"like_": "slow-"}}}
    answer = call("POST", f"{server.url}/artifacts/latest/filter", json=wanted).raise_for_status()
    return {row["key"]: row for row in answer.json()}


def test_a_run_shows_progress_manifest_metrics_lineage_and_report(
    server: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETRIEVE_REPORTS_URL", "http://reports.example/all/")

    [stage_done] = run(tmp_path).done.values()

    shown = artifacts(server)
    key = stage_done.key[:8]
    assert shown.keys() == {
        f"slow-{key}-progress", f"slow-{key}", "small-slow-metrics", "small-slow-lineage", "small-slow-report"
    }  # fmt: skip
    far = shown[f"slow-{key}-progress"]
    assert (far["type"], far["data"]) == ("progress", 100.0)
    assert far["description"].startswith("done in ")
    wanted = {"name": {"any_": [f"slow {key}"]}}  # recorded a while after the run's end
    [task] = wait_for(lambda: post(server.url, "task_runs", task_runs=wanted), 2, "the task run is recorded")
    assert {shown[name]["task_run_id"] for name in (f"slow-{key}-progress", f"slow-{key}")} == {task["id"]}
    assert json.loads(shown["small-slow-metrics"]["data"]) == [
        {"run": "dense", "metric": "MRR@10", "ours": "0.380", "paper": "0.394", "difference": "−0.014"}
    ]
    assert "6,980 queries of split dev" in shown["small-slow-metrics"]["description"]
    picture = shown["small-slow-lineage"]["data"].split("base64,")[1].split(")")[0]
    assert key in base64.b64decode(picture).decode()
    assert "(http://reports.example/all/small/slow/report.html)" in shown["small-slow-report"]["data"]


def test_a_stage_that_fails_stops_where_it_was_and_without_an_address_the_reports_path_is_shown(
    server: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETRIEVE_REPORTS_URL", raising=False)
    (tmp_path / "fault").touch()

    with pytest.raises(ValueError, match="a fault"):
        run(tmp_path)

    [stopped] = [row for key, row in artifacts(server).items() if key.endswith("-progress")]
    assert 0 < stopped["data"] < 100
    assert stopped["description"] == "stopped, waiting: 25 of 30 steps"

    (tmp_path / "fault").unlink()
    run(tmp_path)

    shown = artifacts(server)
    [again] = [row for key, row in shown.items() if key.endswith("-progress")]
    assert again["data"] == 100.0
    assert str(tmp_path / "reports" / "small" / "slow" / "report.html") in shown["small-slow-report"]["data"]
