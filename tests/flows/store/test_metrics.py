"""The metrics of a store without a server, as text and as a file."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.prefect_server.api import Api
from flows.store.metrics import Latest, StoreCollector, metrics_text, serving, show_metrics
from storage.errors import UserError
from storage.store.run_notes import noted
from storage.store.store import Store
from tests.storage.published import BUILT, publish


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name and labels in the order of their names, as Prometheus' own parser reads them."""
    return {
        (
            sample.name.removeprefix("pretrieve_"),
            ",".join(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with two artifacts of one stage and one of another, an interrupted build and a run."""
    result = Store(tmp_path / "store")
    result.mark()
    energy = {"energy_joules": {"GPUs": 5.0}}
    for stage, version, size in (("made", 1, 10), ("made", 2, 30), ("other", 1, 7)):
        work = result.work(stage, "new")
        work.mkdir(parents=True)
        (work / "file").write_text("x" * size)
        publish(result, stage, version=version, built=BUILT | {"seconds": float(size)} | energy)
    work = result.work("made", "0" * 24)
    work.mkdir(parents=True)
    (work / "file").write_text("x" * 100)
    return result


def test_metrics_are_the_sums_of_the_manifests(store: Store) -> None:
    with noted(store, "reproduce", "a run", ["made/0123"]):
        values = samples(metrics_text(store, None).decode())

    assert (values["artifacts", "made"], values["artifacts", "other"]) == (2, 1)
    assert (values["artifact_bytes", "made"], values["artifact_bytes", "other"]) == (40, 7)
    assert (values["build_seconds", "made"], values["build_seconds", "other"]) == (40, 7)
    assert values["build_joules", "GPUs,made"] == 10
    assert values["damaged_artifacts", ""] == 0
    assert (values["work_folders", "interrupted"], values["work_folders", "building"]) == (1, 0)
    assert values["noted_runs", "running"] == 1
    assert values["folder_bytes", ".work"] == 100
    assert 0 < values["disk_free_bytes", ""] < values["disk_size_bytes", ""]
    assert not any(name.startswith("server") for name, _ in values)


def test_a_build_in_progress_and_a_damaged_artifact_count(store: Store) -> None:
    next(store.root.glob("other/*/file")).write_text("other size")
    with store.lock("made", "0" * 24, lambda: None):
        values = samples(metrics_text(store, None).decode())

    assert values["damaged_artifacts", ""] == 1
    assert (values["work_folders", "interrupted"], values["work_folders", "building"]) == (0, 1)


def test_a_folder_that_garbage_collection_deletes_is_no_interrupted_build(store: Store) -> None:
    (store.root / ".work" / f"deleted-made-{'1' * 24}-1700000000").mkdir()

    assert samples(metrics_text(store, None).decode())["work_folders", "interrupted"] == 1


def test_metrics_are_either_written_or_served(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--output, --port: expected one of them"):
        show_metrics(store.root, tmp_path / "pretrieve.prom", 1, "127.0.0.1")


def test_a_server_that_is_away_is_a_metric(store: Store) -> None:
    values = samples(metrics_text(store, Api("http://127.0.0.1:9/api", None, 0.0)).decode())

    assert values["server_up", ""] == 0
    assert values["artifacts", "made"] == 2


def test_a_refused_user_is_named_on_standard_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    class Locked(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        do_POST = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked) as locked:
        threading.Thread(target=locked.serve_forever, daemon=True).start()
        api = Api(f"http://127.0.0.1:{locked.server_port}/api", None, 0.0)
        values = samples(metrics_text(store, api).decode())
        locked.shutdown()

    assert values["server_up", ""] == 0
    assert f"metrics: the server at {api.url} refuses this user (401)" in capsys.readouterr().err


def test_a_file_is_written_completely(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    file = tmp_path / "pretrieve.prom"

    show_metrics(store.root, file, None, "127.0.0.1")

    assert samples(file.read_text())["artifacts", "made"] == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["pretrieve.prom"]


class Slow(StoreCollector):
    """Computes the metrics of a store; the second computation waits until `go` is set."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, None)
        self.computations, self.go = 0, threading.Event()

    def collect(self) -> Iterator[Any]:
        self.computations += 1
        if self.computations > 1:
            self.go.wait(600)
        yield from super().collect()


def test_scrapes_during_a_computation_return_the_earlier_metrics_and_start_none(store: Store) -> None:
    slow = Slow(store)
    latest = Latest(slow)
    computing = threading.Thread(target=latest.refresh)
    with serving(latest, 0, "127.0.0.1") as address:
        computing.start()
        answers = [samples(httpx.get(address, timeout=10).text) for _ in range(20)]
        slow.go.set()
        computing.join()
        after = samples(httpx.get(address).text)

    assert slow.computations == 2
    times = {answer["collected_timestamp_seconds", ""] for answer in answers}
    assert len(times) == 1
    assert times.pop() < after["collected_timestamp_seconds", ""] <= time.time()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_port_in_use_is_named(store: Store) -> None:
    latest = Latest(StoreCollector(store, None))
    with serving(latest, 0, "127.0.0.1") as address:
        port = httpx.URL(address).port
        with (
            pytest.raises(UserError, match=rf"--port {port}: Address already in use"),
            serving(latest, port or 0, "127.0.0.1"),
        ):
            pass
