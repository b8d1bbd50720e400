"""Real services for tests: a Prefect server and workers on loopback, each with a log, each ended by `Service.stop`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests import prefect_database, warm
from tests.ports import free_port
from tests.warm import ROOT, WHEEL

T = TypeVar("T")
PATIENCE = 4  # times as long as a quiet machine needs, with room to spare; what is awaited that long has hung
PREFECT = [sys.executable, "-m", "prefect"]
PRETRIEVE = [sys.executable, "-m", "flows.cli"]
CERTIFICATES = False  # all is HTTP here, and reading certificates takes 20 ms of CPU for each request
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1  # of prctl in Linux


@dataclass
class Service:
    """A process that runs until it is stopped, and what it wrote."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    """Where it answers, if it does."""

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def said(self) -> str:
        """Everything that it wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self, minutes: float = 1) -> None:
        """SIGTERM, then SIGKILL for all that it started."""
        if self.alive():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=60 * minutes)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its group
        self.process.wait(timeout=300)


def start(name: str, command: list[str], env: dict[str, str], log: Path, cwd: Path = ROOT) -> Service:
    """Start a command in a process group of its own; its output goes to `log`. It ends with the tests' process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, env=env, cwd=cwd, stdout=file, stderr=file, start_new_session=True, preexec_fn=_end_with_tests
        )
    return Service(name, process, log)


def _end_with_tests() -> None:
    """Have the kernel send SIGTERM to this process when the tests' process ends, also by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process' environment without any setting of Prefect's or ours, with a home of its own, and `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PRETRIEVE_"))}
    return kept | {
        "PYTHONPATH": str(ROOT), "HOME": str(home), "PREFECT_HOME": str(home / "prefect"), "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PRETRIEVE_COLLECTIONS": str(WHEEL.parent),
    } | more  # fmt: skip


def wait_for(condition: Callable[[], T], minutes: float, what: str = "the condition", every: float = 1.0) -> T:
    """Ask again until the answer is true; it is returned. A server that is away or in trouble counts as not yet.

    So many minutes are what it may take on a quiet machine; a busy one has `PATIENCE`.
    """
    deadline = time.monotonic() + 60 * minutes * PATIENCE
    while True:
        try:
            if answer := condition():
                return answer
        except httpx.TransportError:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
        assert time.monotonic() < deadline, f"{what}: not within {minutes * PATIENCE} minutes"
        time.sleep(every)


def answers(url: str, path: str = "/health") -> bool:
    """Whether the API below `url` answers 200."""
    try:
        return httpx.get(f"{url}{path}", timeout=30, verify=CERTIFICATES).status_code == 200
    except httpx.HTTPError:
        return False


def start_server(home: Path, port: int | None = None, **more: str) -> Service:
    """A Prefect server on SQLite in `home`, healthy; `more` is for its environment. `url` ends with /api."""
    port = port or free_port()
    shown = {"PREFECT_UI_URL": f"http://127.0.0.1:{port}", "PREFECT_SERVER_UI_API_URL": "/api"}
    env = environment(home, **shown | more)
    command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    if "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in more:
        prefect_database.provide(Path(env["PREFECT_HOME"]))
        command = [sys.executable, "-m", "tests.served_prefect", "127.0.0.1", str(port)]
    server = start("server", command, env, home / "logs" / "server.log")
    server.url = f"http://127.0.0.1:{port}/api"
    try:
        wait_for(lambda: answers(server.url) or not server.alive(), 4, "the server answers")
        assert server.alive(), f"the server ended: {server.said()[-3000:]}"
    except BaseException:
        server.stop()
        raise
    return server


def worker_environment(url: str, store: Path, home: Path, **more: str) -> dict[str, str]:
    """What a worker is started with."""
    return environment(
        home,
        **{
            "PREFECT_API_URL": url,
            "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(store / ".prefect" / "results"),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "4",  # 10 make a test wait; each question takes the server 0.1 s of CPU
            "PRETRIEVE_HOME": str(ROOT),
            "PRETRIEVE_STORE": str(store),
        }
        | more,
    )


def start_worker(
    url: str, pool: str, name: str, store: Path, home: Path, *, limit: int | None = 1, **more: str
) -> Service:
    """A worker of a pool that runs our deployments on `store`, online; `more` is for its environment."""
    command = [sys.executable, "-m", "flows.prefect_server.worker", "--pool", pool, "--name", name]
    command += ["--limit", str(limit)] if limit else []
    env = worker_environment(url, store, home, **more)
    worker = start(name, command, env, home / "logs" / f"{name}.log")
    try:
        wait_for(lambda: online(url, pool, name) or not worker.alive(), 4, f"worker {name} is online")
        assert worker.alive(), f"{name} ended: {worker.said()[-3000:]}"
    except BaseException:
        worker.stop()
        raise
    return worker


def online(url: str, pool: str, name: str) -> bool:
    """Whether the server has heard of a worker lately."""
    return any(row["name"] == name and row["status"] == "ONLINE" for row in post(url, f"work_pools/{pool}/workers"))


def register(url: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """`pretrieve register` on a server; `more` is for its environment."""
    done = warm.run(home, "register", PREFECT_API_URL=url, **more)
    assert done.returncode == 0, done.stderr + done.stdout
    return done


def call(method: str, url: str, **given: Any) -> httpx.Response:
    """A request to an API, with a token where the server wants one against forged requests.

    It is sent again while the server answers 5xx, as one on SQLite does while its database is locked.
    """
    for seconds in (1, 2, 4, 8, 15, 15):
        answer = _call_once(method, url, **given)
        if not answer.is_server_error:
            return answer
        time.sleep(seconds)
    return _call_once(method, url, **given)


def _call_once(method: str, url: str, **given: Any) -> httpx.Response:
    answer = httpx.request(method, url, timeout=120, verify=CERTIFICATES, **given)
    if answer.status_code == 403 and "CSRF" in answer.text:
        api, auth, name = f"{url.partition('/api/')[0]}/api", given.get("auth"), os.urandom(8).hex()
        issued = httpx.get(f"{api}/csrf-token", params={"client": name}, auth=auth, timeout=120).raise_for_status()
        headers = {"Prefect-Csrf-Client": name, "Prefect-Csrf-Token": issued.json()["token"]}
        answer = httpx.request(method, url, timeout=120, headers=headers, **given)
    return answer


def post(url: str, what: str, **filters: Any) -> list[dict[str, Any]]:
    """Up to 200 rows of a kind that the server has (`flow_runs`, `task_runs`, `artifacts`, …)."""
    answer = call("POST", f"{url}/{what}/filter", json={"limit": 200, **filters})
    answer.raise_for_status()
    rows: list[dict[str, Any]] = answer.json()
    return rows


def start_run(url: str, deployment: str, *, tags: Sequence[str] = (), **parameters: Any) -> str:
    """Ask for a run of `flow/deployment`; its id."""
    results = call("GET", f"{url}/deployments/name/{deployment}").raise_for_status().json()
    body = {"parameters": parameters, "state": {"type": "SCHEDULED"}, "tags": list(tags)}
    created = call("POST", f"{url}/deployments/{results['id']}/create_flow_run", json=body)
    return str(created.raise_for_status().json()["id"])


def run_of(url: str, run: str) -> dict[str, Any]:
    """A flow run as the server knows it."""
    results: dict[str, Any] = call("GET", f"{url}/flow_runs/{run}").raise_for_status().json()
    return results


def wait_for_end(url: str, run: str, minutes: float) -> dict[str, Any]:
    """The flow run, once it is Completed, Failed, Crashed or Cancelled."""
    ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return wait_for(
        lambda: row if (row := run_of(url, run))["state_type"] in ended else None, minutes, f"run {run} ends", every=1
    )  # type: ignore[return-value]


@contextlib.contextmanager
def stopping(*services: Service) -> Iterator[None]:
    """Stop services at the end of the block, the last first."""
    try:
        yield
    finally:
        for service in reversed(services):
            service.stop()
