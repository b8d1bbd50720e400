"""`pretrieve up` and `down` for real: what dies is started again, nothing of it is left, and no run is lost."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from flows.prefect_server.processes import running, with_environment
from tests.ports import free_port
from tests.services.lab import CHANGES, give_way, long_training
from tests.services.servers import (
    PRETRIEVE,
    WHEEL,
    call,
    environment,
    online,
    post,
    run_of,
    start_run,
    wait_for,
)

pytestmark = pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads")


WEBHOOK = {"PRETRIEVE_WEBHOOK": "http://127.0.0.1:9/hook"}


def command(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder of the user's, whose shell names another server and another database."""
    foreign = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_PROFILE": "mine"}
    foreign |= {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://127.0.0.1:1/none"}
    env = environment(folder, **foreign | more)
    return subprocess.run([*PRETRIEVE, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=1800)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose store's services are ended with the test, whatever becomes of it."""
    yield tmp_path
    store = str(tmp_path / "artifacts")
    for process in with_environment(PRETRIEVE_STORE=store) + with_environment(PREFECT_HOME=f"{store}/.prefect/server"):
        process.kill()


def pids(folder: Path) -> dict[str, int]:
    """The services that run, by name."""
    return {name: one.pid for name, one in running(folder / "artifacts" / ".prefect" / "services").items()}


def processes_of_runs(folder: Path) -> list[psutil.Process]:
    """What the workers have started."""
    workers = [psutil.Process(pids(folder)[name]) for name in ("cpu-0", "gpu-0")]
    return [process for worker in workers for process in worker.children(recursive=True)]


def cpu_is_paused(url: str) -> bool:
    """Whether nothing new of the cpu pool is begun."""
    return bool(call("GET", f"{url}/work_pools/cpu").raise_for_status().json()["is_paused"])


def test_up_and_down(folder: Path) -> None:
    port, reports, busy = free_port(), free_port(), socket.socket()
    with busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = str(busy.getsockname()[1])
        refused = command(folder, "up", "--port", taken)
        assert refused.returncode == 2
        assert taken in refused.stderr
        assert "--port" in refused.stderr
        assert pids(folder) == {}

    started = command(folder, "up", "--port", str(port), "--reports-port", str(reports))

    assert started.returncode == 0, started.stderr
    password = (folder / "artifacts" / ".prefect" / "services" / "password").read_text()
    url = f"http://{password}@127.0.0.1:{port}/api"
    assert f"http://127.0.0.1:{port}" in started.stdout
    first = pids(folder)
    assert set(first) == {"server", "reports", "cpu-0", "gpu-0", "supervisor"}
    assert len(post(url, "deployments")) == 8
    assert online(url, "cpu", "cpu-0")
    assert online(url, "gpu", "gpu-0")
    (folder / "artifacts" / "reports" / "page.html").write_text("a report")
    assert httpx.get(f"http://127.0.0.1:{reports}/page.html", timeout=120).text == "a report"
    listening = {
        address.laddr.ip
        for pid in first.values()
        for address in psutil.Process(pid).net_connections(kind="tcp")
        if address.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}

    # Again: only the supervisor is another, which has this environment. What dies is started again, and nothing else.
    again = command(folder, "up", **WEBHOOK)
    assert "already running" in again.stdout
    assert (folder / "artifacts" / ".prefect" / "services" / "password").read_text() == password
    begun = pids(folder)
    assert {name for name, pid in begun.items() if first.get(name) != pid} == {"supervisor", "notifier"}
    first = begun
    killed = {name: first[name] for name in ("gpu-0", "reports")}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: (now := pids(folder)).keys() == first.keys() and not {*now.items()} & {*killed.items()},
        2, "the supervisor starts both again",
    )  # fmt: skip
    os.kill(first["supervisor"], signal.SIGKILL)
    os.kill(first["server"], signal.SIGKILL)
    assert command(folder, "up", **WEBHOOK).returncode == 0
    second = pids(folder)
    assert {name for name in first if first[name] == second[name]} == {"cpu-0"}
    assert command(folder, "up", "--port", str(free_port())).returncode == 2

    # A run is under way: down names it and ends nothing; with --cancel it ends, Cancelled, and nothing is left.
    changes = [*CHANGES, *long_training(1_000_000)]
    run = start_run(url, "reproduce/reproduce", recipe="quickstart", changes=changes, until="train_generator")
    wait_for(lambda: list((folder / "artifacts" / ".work").glob("train_generator-*/logs/*")), 5, "the training begins")
    for process in processes_of_runs(folder):
        give_way(process)  # endless, and the rest of the test needs the cores
    refused = command(folder, "down")
    assert refused.returncode == 2
    assert run_of(url, run)["name"] in refused.stderr
    assert pids(folder) == second

    # Draining begins nothing new. Interrupted, it undoes that; killed, the next up does.
    for number, undone in ((signal.SIGINT, True), (signal.SIGKILL, False)):
        draining = subprocess.Popen([*PRETRIEVE, "down", "--drain"], cwd=folder, env=environment(folder))
        wait_for(lambda: cpu_is_paused(url), 2, "the pool is paused")
        draining.send_signal(number)
        draining.wait(300)
        assert cpu_is_paused(url) is not undone
    without = command(folder, "up").stdout
    assert "left paused" in without
    assert re.search(rf"no longer reported \(.*{re.escape(run_of(url, run)['name'])}.* among them\)", without)
    assert not cpu_is_paused(url)
    assert pids(folder) == {
        name: pid for name, pid in (second | {"supervisor": pids(folder)["supervisor"]}).items() if name != "notifier"
    }
    for process in processes_of_runs(folder):
        give_way(process, 0)  # with what others leave, its end may take longer than `down` waits
    stopped = command(folder, "down", "--cancel")

    assert stopped.returncode == 0, stopped.stderr
    assert pids(folder) == {}
    assert with_environment(PRETRIEVE_STORE=str(folder / "artifacts")) == []
    assert "did not end" not in stopped.stdout
    assert "nothing runs" in command(folder, "down").stdout

    # The database is kept, and the run is there to be retried.
    assert command(folder, "up", "--port", str(port), "--reports-port", str(reports)).returncode == 0
    assert run_of(url, run)["state_type"] == "CANCELLED"
    assert re.search(r"cpu-0: ended.*server: ended", command(folder, "down", "--drain").stdout, re.DOTALL)
    assert pids(folder) == {}
