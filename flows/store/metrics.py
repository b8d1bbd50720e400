"""`pretrieve metrics`: the state of a store, and of the Prefect server that is named, for Prometheus.

The store's part is read from manifests, run notes and folders; no artifact's content is read. Without a server, its
part is left out.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.prefect_server.api import Api
from flows.prefect_server.named_server import named_server
from flows.prefect_server.register import POOLS
from flows.store.gc_survey import WORK
from flows.terminal import say, unwrapped
from storage.artifact import Manifest
from storage.errors import UserError, one_line
from storage.files import bytes_below, write_atomically
from storage.store.manifest_checks import all_files
from storage.store.run_notes import State, read_notes
from storage.store.store import Store
from tasks.runtime.prefect_task import TAG

TASK_STATES = ("Completed", "Cached", "Failed", "Crashed", "Running")
RUN_STATES = ("SCHEDULED", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CRASHED", "CANCELLED")
SERVER_PATIENCE = 0.0  # a server that fails is not called again: pretrieve_server_up is 0 then
SECONDS_BETWEEN = 10.0  # computations of metrics that are served; longer where one takes longer


@dataclass
class StageTotals:
    """The sums over the artifacts of a stage."""

    artifacts: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    joules: Counter[str] = field(default_factory=Counter)

    def add(self, manifest: Manifest) -> None:
        """Add an artifact."""
        self.artifacts += 1
        self.rows += manifest.rows or 0
        self.bytes += sum(file.bytes for file in all_files(manifest).values())
        self.seconds += manifest.built["seconds"]
        self.joules.update(manifest.built.get("energy_joules") or {})


class StoreCollector:
    """The metrics of a store, and of a server where one is given."""

    def __init__(self, store: Store, api: Api | None) -> None:
        self._store, self._api = store, api

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as Prometheus' client library takes them."""
        yield from self._artifacts()
        yield from self._work()
        yield _gauge("collected_timestamp_seconds", "When these metrics were computed.", [], {(): time.time()})
        if self._api is not None:
            yield from self._server(self._api)

    def _artifacts(self) -> Iterator[Any]:
        totals: dict[str, StageTotals] = {}
        damaged = 0
        for _, manifest in self._store.manifests():
            if manifest is None:
                damaged += 1
            else:
                totals.setdefault(manifest.stage, StageTotals()).add(manifest)
        columns: dict[str, tuple[str, Callable[[StageTotals], float]]] = {
            "artifacts": ("Published artifacts of a stage.", lambda total: total.artifacts),
            "artifact_rows": ("Rows of a stage's artifacts.", lambda total: total.rows),
            "artifact_bytes": ("Size of a stage's artifacts.", lambda total: total.bytes),
            "build_seconds": ("Seconds that building a stage's artifacts took, all attempts.", lambda t: t.seconds),
        }
        for name, (words, value) in columns.items():
            yield _gauge(name, words, ["stage"], {(stage,): value(total) for stage, total in totals.items()})
        joules: dict[tuple[str, ...], float] = {
            (stage, part): value for stage, total in totals.items() for part, value in total.joules.items()
        }
        yield _gauge("build_joules", "Measured energy of building a stage's artifacts.", ["stage", "part"], joules)
        yield _gauge("damaged_artifacts", "Artifacts that contradict their manifests.", [], {(): damaged})

    def _work(self) -> Iterator[Any]:
        root = self._store.root
        folders = [folder for folder in (root / ".work").glob("*/") if WORK.fullmatch(folder.name)]
        building = sum(self._store.is_being_built(folder) for folder in folders)
        states = {"building": building, "interrupted": len(folders) - building}
        yield _gauge("work_folders", "Builds in progress, and interrupted ones.", ["state"], _by_label(states))
        notes = Counter(note.state for note in read_notes(root))
        runs = {str(state.name).lower(): notes[state] for state in State}
        yield _gauge("noted_runs", "Runs with a note in the store.", ["state"], _by_label(runs))
        sizes = {name: bytes_below(root / name) for name in (".work", ".damaged", ".prefect", "ledger", "reports")}
        yield _gauge("folder_bytes", "Size of the store's other folders.", ["folder"], _by_label(sizes))
        disk = shutil.disk_usage(root)
        yield _gauge("disk_free_bytes", "Free space on the store's file system.", [], {(): disk.free})
        yield _gauge("disk_size_bytes", "Size of the store's file system.", [], {(): disk.total})

    def _server(self, api: Api) -> Iterator[Any]:
        import httpx

        try:
            tasks = {state: _count(api, "task_runs", state={"name": {"any_": [state]}}) for state in TASK_STATES}
            runs = {state.lower(): _count(api, "flow_runs", state={"type": {"any_": [state]}}) for state in RUN_STATES}
            queued = {pool: _queued(api, pool) for pool in POOLS}
        except (httpx.HTTPError, UserError) as error:
            if isinstance(error, UserError):
                unwrapped(stderr=True).print(f"metrics: {error}")
            yield _gauge("server_up", "Whether the Prefect server answers.", [], {(): 0})
            return
        yield _gauge("server_up", "Whether the Prefect server answers.", [], {(): 1})
        words = "Task runs on the server by state; Completed ones were built, Cached ones were in the store."
        yield _gauge("task_runs", words, ["state"], {(state.lower(),): value for state, value in tasks.items()})
        yield _gauge("flow_runs", "Flow runs on the server by state.", ["state"], _by_label(runs))
        yield _gauge("queue_length", "Runs that are due and that no worker has taken.", ["pool"], _by_label(queued))


def metrics_text(store: Store, api: Api | None) -> bytes:
    """Return the metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(StoreCollector(store, api))
    return generate_latest(registry)


def show_metrics(folder: Path, output: Path | None, port: int | None, host: str) -> None:
    """Print the metrics, write them to a file for node_exporter, or serve them until SIGTERM or Ctrl-C."""
    if output is not None and port is not None:
        raise UserError("--output, --port: expected one of them")
    store, api = Store.open(folder), _api()
    if port is not None:
        _serve(StoreCollector(store, api), port, host)
    elif output is not None:
        write_atomically(output, metrics_text(store, api))
    else:
        say(metrics_text(store, api).decode().rstrip())


class Latest:
    """The latest metrics of a collector. A scrape returns them at once: scrapes that overlap start no computation."""

    def __init__(self, collector: StoreCollector) -> None:
        self._collector = collector
        self.refresh()

    def refresh(self) -> None:
        """Compute the metrics again."""
        self._metrics = list(self._collector.collect())

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as Prometheus' client library takes them."""
        yield from self._metrics


@contextlib.contextmanager
def serving(latest: Latest, port: int, host: str) -> Iterator[str]:
    """Serve the latest metrics in threads during the block; yields their address. Port 0 is a free one."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(latest)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; choose another port or host") from None
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _serve(collector: StoreCollector, port: int, host: str) -> None:
    """Serve the metrics until SIGTERM or Ctrl-C. This thread computes them, at most half of the time."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    started = time.monotonic()
    latest = Latest(collector)
    with serving(latest, port, host) as address:
        say(f"metrics: {address}")
        while True:
            time.sleep(max(SECONDS_BETWEEN, time.monotonic() - started))
            started = time.monotonic()
            try:
                latest.refresh()
            except (UserError, OSError) as error:  # the earlier metrics stay; their time shows how old they are
                unwrapped(stderr=True).print(f"metrics: not computed: {one_line(str(error))}")


def _api() -> Api | None:
    """Return the API of the server that Prefect's settings name; None where they name none."""
    return Api.of_settings(SERVER_PATIENCE) if named_server() else None


def _gauge(name: str, words: str, labels: list[str], values: dict[tuple[str, ...], float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(f"pretrieve_{name}", words, labels=labels)
    for label, value in values.items():
        gauge.add_metric(list(label), value)
    return gauge


def _by_label(values: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}


def _count(api: Api, kind: str, **filters: Any) -> int:
    """Return how many of our runs of a kind match a filter."""
    body: dict[str, Any] = {"flow_runs": {"tags": {"all_": [TAG]}}}
    body[kind] = body.get(kind, {}) | filters
    return int(api.send("POST", f"{kind}/count", body))


def _queued(api: Api, pool: str) -> int:
    now = datetime.now(UTC).isoformat()
    runs = {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": now}}
    return int(api.send("POST", "flow_runs/count", {"flow_runs": runs, "work_pools": {"name": {"any_": [pool]}}}))
