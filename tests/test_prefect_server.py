"""With PREFECT_API_URL set, that server's UI shows every stage: its name, key and rows, and a table of its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.services.servers import Service, post, wait_for
from tests.warm import WHEEL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]


def run(folder: Path, server: Service) -> str:
    """Run the first stages; the number of the flow run."""
    before = {row["id"] for row in flow_runs(server)}
    done = warm.run(
        folder, "reproduce", "quickstart", "--set", "dataset.fraction=0.02", "--until", "split_corpus",
        PREFECT_API_URL=server.url,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [built] = [row["id"] for row in flow_runs(server) if row["id"] not in before]
    return str(built)


def flow_runs(server: Service) -> list[dict[str, Any]]:
    return post(server.url, "flow_runs", sort="START_TIME_DESC")


def of_run(server: Service, flow_run: str, what: str) -> list[dict[str, Any]]:
    """Everything of a kind that belongs to a flow run."""
    return post(server.url, what, flow_runs={"id": {"any_": [flow_run]}})


def ended(server: Service, flow_run: str, number: int) -> dict[str, str]:
    """The states of a run's tasks by their names, once so many have ended: the server learns of them a little later."""

    def states() -> dict[str, str]:
        rows = of_run(server, flow_run, "task_runs")
        results = {row["name"]: row["state_name"] for row in rows if row["state_name"] in ("Completed", "Cached")}
        return results if len(results) >= number else {}

    return wait_for(states, 5, f"{number} task runs have ended")


def manifests(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifests of the store by stage."""
    results = [json.loads(file.read_text()) for file in (folder / "artifacts").glob("[!.]*/*/manifest.json")]
    return {row["stage"]: row for row in results}


def test_the_server_shows_every_stage_with_its_manifest_and_what_the_store_has_as_cached(
    prefect_server: Service, tmp_path: Path
) -> None:
    first = run(tmp_path, prefect_server)
    names = {stage: f"{stage} {manifest['key'][:8]}" for stage, manifest in manifests(tmp_path).items()}

    assert ended(prefect_server, first, 2) == dict.fromkeys(names.values(), "Completed")
    tables = {row["key"]: row["data"] for row in of_run(prefect_server, first, "artifacts")}
    for stage, manifest in manifests(tmp_path).items():
        table = tables[f"{stage}-{manifest['key'][:8]}".replace("_", "-")]
        assert manifest["key"] in table
        assert manifest["hash"] in table
        if manifest["rows"] is not None:
            assert f"{manifest['rows']:,}" in table

    lost = tmp_path / "artifacts" / "split_corpus" / manifests(tmp_path)["split_corpus"]["key"]
    lost.rename(tmp_path / "lost")
    second = run(tmp_path, prefect_server)

    assert lost.exists()
    assert ended(prefect_server, second, 2) == {names["ingest_corpus"]: "Cached", names["split_corpus"]: "Completed"}
