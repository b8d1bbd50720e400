"""What `pretrieve up` and `down` refuse, and what they leave alone; tests/services/test_up.py has them at work."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import flows.prefect_server.register
import flows.prefect_server.up
from flows.prefect_server.api import PAGE, Api
from flows.prefect_server.down import down
from flows.prefect_server.pool_pause import paused
from flows.prefect_server.processes import running, start_moment
from flows.prefect_server.services import ServicePaths
from flows.prefect_server.status import status
from flows.prefect_server.up import only_one, up
from storage.errors import UserError
from tests.ports import free_port

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`begin(**environment)` starts a process that does nothing and ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**more: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(SLEEP, env=os.environ | more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def paths(tmp_path: Path) -> ServicePaths:
    """A store's, with a folder for services."""
    built = ServicePaths(tmp_path.resolve())
    built.folder.mkdir(parents=True)
    return built


def note(paths: ServicePaths, name: str, process: subprocess.Popen[bytes], port: int = 1) -> None:
    """Have a process taken for a service that `up` has started."""
    row = {"name": name, "pid": process.pid, "began": start_moment(process.pid), "url": f"http://127.0.0.1:{port}"}
    (paths.folder / f"{name}.json").write_text(json.dumps(row))


def test_a_second_command_says_that_it_waits(paths: ServicePaths, capsys: pytest.CaptureFixture[str]) -> None:
    entered, output = threading.Event(), ""
    with (paths.folder / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        def second() -> None:
            with only_one(paths):
                entered.set()

        waiting = threading.Thread(target=second, daemon=True)
        waiting.start()
        deadline = time.monotonic() + 300
        while "is active; waiting" not in output:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            output += capsys.readouterr().err
        assert not entered.is_set()
    assert entered.wait(300)


def exit_code_of_status(paths: ServicePaths) -> int:
    try:
        status(paths.store)
    except typer.Exit as ended:
        return int(ended.exit_code)
    return 0


def test_the_status_of_a_store_without_services(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ServicePaths(tmp_path.resolve() / "store")

    assert exit_code_of_status(paths) == 1
    assert f"nothing runs for the store {paths.store}; `pretrieve up` starts" in capsys.readouterr().out
    assert not paths.store.exists()


def test_the_status_names_each_service_and_what_has_ended(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    started = {name: begin() for name in ("server", "reports", "cpu-0", "supervisor")}
    for number, (name, process) in enumerate(started.items()):
        note(paths, name, process, number)
    before = {path: path.read_bytes() for path in paths.folder.iterdir()}

    assert exit_code_of_status(paths) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(started)
    for number, (line, process) in enumerate(zip(lines, started.values(), strict=True)):
        assert f"runs as process {process.pid} at http://127.0.0.1:{number}  log: {paths.store}/" in line
    started["cpu-0"].kill()
    started["cpu-0"].wait()
    assert exit_code_of_status(paths) == 1
    output = capsys.readouterr().out
    assert "cpu-0       does not run" in output
    assert "not running: cpu-0; `pretrieve up` starts what has ended" in output
    (paths.folder / "supervisor.json").unlink()  # as where `up` was interrupted
    assert exit_code_of_status(paths) == 1
    assert "not running: cpu-0, supervisor;" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before if path.exists()}.items() <= before.items()


def test_the_highest_port_leaves_none_for_the_reports(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--reports-port"):
        up(tmp_path, 65535, None)


def test_a_report_server_that_ends_at_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        flows.prefect_server.up, "reports_command", lambda *_: [sys.executable, "-c", "raise SystemExit('no pages')"]
    )

    with pytest.raises(UserError, match="reports ended: no pages"):
        up(tmp_path, free_port(), free_port())


def test_the_reason_of_a_service_that_ends_is_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "starts\n10:00 | ERROR   | uvicorn - address already in use\n10:01 | ERROR   | uvicorn - Exiting.\nends"
    monkeypatch.setattr(
        flows.prefect_server.up, "reports_command", lambda *_: [sys.executable, "-c", f"raise SystemExit({lines!r})"]
    )

    with pytest.raises(UserError, match=r"reports ended: .*address already in use; see"):
        up(tmp_path, free_port(), free_port())
    lines = lines.replace("address already in use", "no room")
    with pytest.raises(UserError, match=r"reports ended: .*no room; see"):  # not what an earlier one said
        up(tmp_path, free_port(), free_port())


def test_a_server_does_not_come_back_where_living_workers_do_not_look(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    worker = begin()
    note(paths, "cpu-0", worker)
    (paths.folder / "server.json").write_text(
        json.dumps({"name": "server", "pid": 1, "began": "long ago", "url": "http://127.0.0.1:4200"})
    )

    with pytest.raises(UserError, match=r"--port \d+: the running workers use the server on port 4200"):
        up(paths.store, free_port(), None)

    assert worker.poll() is None


def test_a_server_with_a_password_is_recognised_and_can_be_ended(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    server = begin()

    class Locked(http.server.BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.send_error(401)

        do_GET = do_POST = do_PATCH = refuse  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked) as locked:
        threading.Thread(target=locked.serve_forever, daemon=True).start()
        note(paths, "server", server, locked.server_port)
        note(paths, "reports", begin())
        for refused in (
            lambda: up(paths.store, None, None), lambda: down(paths.store), lambda: down(paths.store, drain=True),
            lambda: down(paths.store, cancel=True),
        ):  # fmt: skip
            with pytest.raises(UserError, match="PREFECT_SERVER_API_AUTH_STRING"):
                refused()
        assert set(running(paths.folder)) == {"server", "reports"}

        down(paths.store, force=True)
        locked.shutdown()

    assert running(paths.folder) == {}
    server.wait(300)


@pytest.mark.parametrize("option", ["drain", "cancel"])
def test_requests_are_repeated_while_the_server_fails(
    option: str, paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("flows.prefect_server.api.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("flows.prefect_server.api.ANSWER_SECONDS", 2.0)
    requests: list[str] = []
    ended = threading.Event()

    class Busy(http.server.BaseHTTPRequestHandler):
        """Fails at each third request, also at that for a CSRF token; one run is active at first.

        The second request for the active runs has no answer in time.
        """

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append(f"{self.command} {self.path}")
            asked = requests.count("POST /api/flow_runs/filter")
            if asked == 2 and requests[-1].endswith("/filter"):
                ended.wait(300)
                return
            active = [{"name": "a-run", "id": "a-run"}] if asked < 4 else []
            self.send_response(503 if len(requests) % 3 == 1 else 200)
            self.end_headers()
            answer = active if self.path == "/api/flow_runs/filter" else {"token": "t", "is_paused": False}
            self.wfile.write(json.dumps(answer).encode())

        do_GET = do_POST = do_PATCH = answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr("flows.prefect_server.down.POLL_SECONDS", 0.01)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        note(paths, "server", begin(), busy.server_port)
        down(paths.store, **{option: True})
        ended.set()
        busy.shutdown()

    assert running(paths.folder) == {}
    out = capsys.readouterr().out
    assert "waiting for a-run" in out
    assert "answers HTTP 503: trying again in 0 s" in out
    assert "has not answered within 2 s: trying again in 0 s" in out
    if option == "cancel":
        assert "POST /api/flow_runs/a-run/set_state" in requests
    for queue in ("cpu", "gpu/queues/evaluations") if option == "drain" else ():
        assert requests.count(f"PATCH /api/work_pools/{queue}") >= 2  # paused, and resumed


def test_a_drain_pauses_and_resumes_what_is_there_and_was_not_paused(paths: ServicePaths) -> None:
    is_paused = {"/api/work_pools/cpu": False}  # an earlier version has registered no queue of evaluations
    changes = list[tuple[str, bool]]()

    class Pools(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(404 if self.path not in is_paused else 200, {"is_paused": is_paused.get(self.path)})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            changes.append((self.path, body["is_paused"]))
            self.answer(200, None)

        def answer(self, status: int, content: Any) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pools) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api = Api(f"http://127.0.0.1:{server.server_port}/api")
        with paused(paths, api):
            assert changes == [("/api/work_pools/cpu", True)]
        is_paused |= {"/api/work_pools/cpu": True, "/api/work_pools/gpu/queues/evaluations": False}
        with paused(paths, api):
            pass
        server.shutdown()

    queue = "/api/work_pools/gpu/queues/evaluations"
    assert changes == [("/api/work_pools/cpu", True), ("/api/work_pools/cpu", False), (queue, True), (queue, False)]


def test_a_server_that_does_not_answer_is_not_taken_for_none(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    note(paths, "server", begin(), free_port())
    note(paths, "cpu-0", begin())

    with pytest.raises(UserError, match=r"does not answer \(ConnectError\).*--force"):
        down(paths.store)

    assert set(running(paths.folder)) == {"server", "cpu-0"}
    down(paths.store, force=True)
    assert running(paths.folder) == {}


def test_runs_of_other_workers_on_the_same_store_continue(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    of_a_run = {"PRETRIEVE_STORE": str(paths.store), "PREFECT__FLOW_RUN_ID": "a-run"}
    foreign = begin(**of_a_run, PREFECT_HOME="/elsewhere")
    down(paths.store)
    orphan = begin(**of_a_run, PREFECT_HOME=str(paths.home))

    with pytest.raises(UserError, match="--force"):
        down(paths.store)
    assert orphan.poll() is None
    down(paths.store, cancel=True)

    orphan.wait(300)
    assert foreign.poll() is None


def test_a_schedule_is_switched_on_again_where_deploying_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = SimpleNamespace(id="s", slug="weekly", active=True, parameters={"recipe": "quickstart"})
    others = [SimpleNamespace(id=str(number), tags=["pretrieve"], schedules=[]) for number in range(2 * PAGE)]
    foreign = SimpleNamespace(id="f", tags=[], schedules=[])
    deployments = [foreign, *others, SimpleNamespace(id="d", tags=["pretrieve"], schedules=[schedule])]

    class Client:
        """Of Prefect's, with more deployments than it gives at once."""

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def create_work_pool(self, _: Any) -> None:
            pass

        def read_deployments(self, *, deployment_filter: Any, limit: int, offset: int) -> list[Any]:
            of_the_tags = [row for row in deployments if set(deployment_filter.tags.all_) <= set(row.tags)]
            return of_the_tags[offset:][:limit]

        def update_deployment_schedule(self, _: str, __: str, *, parameters: Any = None, **changes: Any) -> None:
            schedule.parameters = parameters or {}  # as the server does
            schedule.__dict__.update(changes)

    def deploy() -> list[str]:
        schedule.active = False
        raise UserError("the second deployment is wrong")

    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: Client())
    monkeypatch.setattr(flows.prefect_server.register, "check_server", lambda: None)
    monkeypatch.setattr(flows.prefect_server.register, "_deploy", deploy)

    with pytest.raises(UserError, match="the second"):
        flows.prefect_server.register.register_all()

    assert schedule.active
    assert schedule.parameters == {"recipe": "quickstart"}


def test_a_log_gets_one_line_for_a_service_that_starts(
    paths: ServicePaths, begin: Callable[..., subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    note(paths, "reports", begin())
    monkeypatch.setattr(flows.prefect_server.up, "POLL_SECONDS", 0.0)
    answers = iter([False, False, True])

    flows.prefect_server.up._wait(paths, running(paths.folder)["reports"], lambda: next(answers))

    assert capsys.readouterr().err == "reports: runs\n"
