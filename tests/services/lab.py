"""A server, its workers and runs of a small recipe on them, for the tests of what goes wrong."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.services.own_postgres import load, postgres, save
from tests.services.servers import (
    Service,
    post,
    register,
    run_of,
    start_run,
    start_server,
    start_worker,
    stopping,
    wait_for,
    wait_for_end,
)

ROUND = (
    "{name: retriever_1, start: backbone, mine_with: bm25, mine: {miner: top, depth: 50, negatives: 8}, train: "
    "{retriever: {dense: {dim: null}}, contrasts: [sum], epochs: 2, batch_queries: 16, passages_per_query: 2, "
    "temperature: 1.0, mask_known_positives: true, query_max_tokens: 32, passage_max_tokens: 64, fit: {learning_rate: "
    "5.0e-5, warmup_ratio: 0.1, weight_decay: 0.01, max_gradient_norm: 1.0, chunk: null}}}"
)
CHANGES = [
    "dataset.fraction=0.02", "backbone.layers=[0, 1]", "queries.generate.shard_passages=40",
    "queries.quality.passages=20", "pretrain.steps=12", "pretrain.probe=null", "execution.threads=1",
    "execution.workers=1", f"rounds=[{ROUND}]", "evaluate.comparisons=[]", "fusions=[]", "claims=null",
    "headline={run: retriever_1, baseline: bm25, metric: MRR@10}",
]  # fmt: skip
"""The quickstart on a fiftieth of its leads, with one round that needs nothing of the pre-training."""
TRAINING = [
    "queries.train.vocabulary=1000", "queries.train.layers=2", "queries.train.hidden_size=64",
    "queries.train.input_max_tokens=24", "queries.train.batch=2", "queries.train.copy_steps=0",
]  # fmt: skip
"""A generator of which a step takes some hundredths of a second."""


def long_training(steps: int, seed: int = 1) -> list[str]:
    """Changes that give train_generator a beginning, a middle and an end; another seed is another artifact."""
    return [*TRAINING, f"queries.train.steps={steps}", f"queries.train.seed={seed}"]


@dataclass
class Site:
    """A server on PostgreSQL, with everything registered; it may be stopped and started again."""

    home: Path
    database: str
    server: Service = field(init=False)

    def start(self, port: int | None = None) -> None:
        """Start the server."""
        self.server = start_server(self.home, port, PREFECT_SERVER_DATABASE_CONNECTION_URL=self.database)

    def restart(self) -> None:
        """Start the server at the port that it had."""
        self.start(int(self.server.url.split(":")[2].split("/")[0]))


@dataclass
class Lab:
    """Workers of one test on a site, and their store."""

    home: Path
    site: Site
    stack: ExitStack
    workers: dict[str, Service] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.site.server.url

    @property
    def store(self) -> Path:
        return self.home / "store"

    def work(self, pool: str, name: str, limit: int | None = 1) -> Service:
        """Start a worker, which ends with the test."""
        worker = start_worker(self.url, pool, name, self.store, self.home, limit=limit)
        self.workers[name] = worker
        self.stack.enter_context(stopping(worker))
        return worker

    def ask(self, goal: str, *changes: str, flow: str = "reproduce") -> str:
        """Start a run of the small recipe that ends with a stage; its id."""
        return start_run(self.url, f"{flow}/{flow}", recipe="quickstart", changes=[*CHANGES, *changes], until=goal)

    def children(self, run: str) -> list[dict[str, Any]]:
        """The child runs of a run, the first first."""
        rows = post(self.url, "flow_runs", flow_runs={"parent_flow_run_id": {"any_": [run]}})
        return sorted(rows, key=lambda row: str(row["expected_start_time"]))

    def child_in(self, stage: str, run: str, minutes: float = 4) -> dict[str, Any]:
        """The child run of a stage, once it has trained a few steps."""

        def working() -> dict[str, Any] | None:
            for child in self.children(run):
                if child["name"].startswith(stage) and child["state_type"] == "RUNNING" and self.steps(child) > 2:
                    return child
            return None

        result = wait_for(working, minutes, f"{stage} of run {run} trains")
        assert result
        return result

    def endless_child(self, stage: str, run: str) -> dict[str, Any]:
        """The same, where the training is not awaited: it leaves the cores to other tests."""
        child = self.child_in(stage, run)
        with contextlib.suppress(psutil.NoSuchProcess):  # that of an earlier attempt
            give_way(process_of(child))
        return child

    def work_folder(self, child: dict[str, Any]) -> Path:
        """Where a child builds, or has left what it had."""
        return next(self.store.glob(f".work/{child['name'].split()[0]}-{child['name'].split()[-1]}*"))

    def steps(self, child: dict[str, Any]) -> int:
        """How many steps its training has logged."""
        folders = list(self.store.glob(f".work/{child['name'].split()[0]}-{child['name'].split()[-1]}*"))
        logs = [path for folder in folders for path in folder.glob("logs/metrics.jsonl")]
        lines = [line for path in logs for line in path.read_text().splitlines() if line.endswith("}")]
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def trained(self, child: dict[str, Any]) -> bool:
        """Whether its artifact is published."""
        stage, key = child["name"].split()[0], child["name"].split()[-1]
        return any(self.store.glob(f"{stage}/{key}*/manifest.json"))

    def state(self, run: str) -> str:
        """Running, Crashed, …"""
        return str(run_of(self.url, run)["state_name"])

    def end(self, run: str, minutes: float = 5) -> dict[str, Any]:
        """The run, when it has ended."""
        return wait_for_end(self.url, run, minutes)

    def completed(self, run: str, minutes: float = 5) -> dict[str, Any]:
        """The run, when it has ended well."""
        ended = self.end(run, minutes)
        assert ended["state_name"] == "Completed", ended["state"]["message"]
        return ended

    def set_state(self, run: str, kind: str, message: str | None = None) -> None:
        """Put a run into a state, as an automation or an operator does."""
        body = {"state": {"type": kind, "message": message}, "force": True}
        httpx.post(f"{self.url}/flow_runs/{run}/set_state", json=body, timeout=120).raise_for_status()

    def retry(self, run: str) -> None:
        """What the Retry button does."""
        body = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retried by a test."}}
        answer = httpx.post(f"{self.url}/flow_runs/{run}/set_state", json=body, timeout=120).raise_for_status().json()
        assert answer["status"] == "ACCEPT", answer

    def cancel(self, run: str) -> None:
        """What the Cancel button does; the run's processes have their share of the cores for their end."""
        for row in (run_of(self.url, run), *self.children(run)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if row["infrastructure_pid"]:  # a run that waits has none
                    give_way(process_of(row), 0)
        self.set_state(run, "CANCELLING")

    def logs(self, run: str) -> str:
        """What a run has told the server."""
        return "\n".join(str(row["message"]) for row in post(self.url, "logs", logs={"flow_run_id": {"any_": [run]}}))

    def heartbeats(self, run: str, since: datetime) -> int:
        """How many heartbeats of a run the server has received since a moment."""
        heartbeats = {
            "event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]},
            "occurred": {"since": since.isoformat()},
        }  # fmt: skip
        answer = httpx.post(f"{self.url}/events/filter", json={"filter": heartbeats}, timeout=120)
        return int(answer.raise_for_status().json()["total"])

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Every published artifact's manifest by stage/key."""
        results = [json.loads(path.read_text()) for path in self.store.glob("[!.]*/*/manifest.json")]
        return {f"{manifest['stage']}/{manifest['key']}": manifest for manifest in results}


def give_way(process: psutil.Process, niceness: int = 10) -> None:
    """Let a process have what others leave of the cores; with a niceness of 0 it has its share again.

    Linux divides them among sessions first, each with a niceness of its own ("autogroup"). A run is a session of its
    own, in which the process' own niceness has nothing to order. Anybody may set the session's back to 0.
    """
    with contextlib.suppress(OSError):  # a kernel without such groups
        Path(f"/proc/{process.pid}/autogroup").write_text(str(niceness), encoding="ascii")


def process_of(run: dict[str, Any]) -> psutil.Process:
    """The process that runs a flow run."""
    return psutil.Process(int(str(run["infrastructure_pid"]).split(":")[-1]))


@contextmanager
def site(home: Path, shared: Path) -> Iterator[Site]:
    """A site for a block. The first of several registers everything, and leaves its database in `shared` for others."""
    # Not SQLite, which locks up for minutes when several workers and runs write on a busy machine.
    with postgres() as (address, password), contextlib.ExitStack() as first:
        database = f"postgresql://prefect:{password}@{address}/prefect"
        built, dump = Site(home, database.replace("://", "+asyncpg://")), shared / "site.sql"
        lock = first.enter_context((shared / "site.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if registered := dump.exists():
            first.close()
            load(database, dump)
        built.start()
        try:
            if not registered:
                register(built.server.url, home)
                save(database, dump)
                first.close()
            yield built
        finally:
            built.server.stop()


@contextmanager
def laboratory(home: Path, at: Site) -> Iterator[Lab]:
    """A lab for a block, with a worker of the cpu pool."""
    with ExitStack() as stack:
        lab = Lab(home, at, stack)
        lab.work("cpu", "cpu-0", limit=None)
        yield lab
