"""What `pretrieve up` has started is closed: to pages of other sites, without the password, and to other machines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from flows.prefect_server.processes import with_environment
from tests.ports import free_port
from tests.services.browser import CHROMIUM
from tests.services.servers import PRETRIEVE, call, environment

CONNECT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=10).close()
        print("connected")
    except ConnectionRefusedError:
        print("refused")
"""

EMBEDDED = """
import os
import httpx
from flows.prefect_server.embedded_server import start
start()
url = f"{os.environ['PREFECT_API_URL']}/admin/version"
auth = tuple(os.environ["PREFECT_API_AUTH_STRING"].split(":"))
for given in ({"auth": auth}, {}, {"auth": auth, "headers": {"Host": "attacker.example"}},
              {"auth": auth, "headers": {"Origin": "http://attacker.example"}}):
    print(httpx.get(url, timeout=120, **given).status_code)
"""


@dataclass
class Started:
    """The services of a store."""

    home: Path
    port: int
    reports: int
    said: str

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def private(self) -> Path:
        """The folder with the password."""
        return self.home / "artifacts" / ".prefect" / "services"

    @property
    def auth(self) -> tuple[str, str]:
        """User and password."""
        user, _, password = (self.private / "password").read_text().partition(":")
        return user, password

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the user's."""
        command = [*PRETRIEVE, *words]
        return subprocess.run(
            command, cwd=self.home, env=environment(self.home), capture_output=True, text=True, timeout=1200
        )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """`pretrieve up`, with a report in its folder."""
    home = tmp_path_factory.mktemp("closed")
    built = Started(home, free_port(), free_port(), "")
    try:
        done = built.run("up", "--port", str(built.port), "--reports-port", str(built.reports))
        assert done.returncode == 0, done.stderr
        built.said = done.stdout + done.stderr
        (home / "artifacts" / "reports" / "page.html").write_text("a report")
        yield built
    finally:
        built.run("down", "--force")
        store = str(home / "artifacts")
        for process in with_environment(PRETRIEVE_STORE=store):
            process.kill()


def test_the_password_is_random_and_readable_by_its_owner_only(started: Started) -> None:
    _, password = started.auth

    assert len(password) >= 43
    assert stat.S_IMODE((started.private / "password").stat().st_mode) == 0o600
    for folder in (started.private, started.private.parent / "server"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    logs = [path.read_text(errors="replace") for path in (started.private.parent / "logs").glob("*.log")]
    arguments = list[bytes]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            arguments.append(path.read_bytes())
    assert not [text for text in (started.said, *logs) if password in text]
    assert not [text for text in arguments if password.encode() in text]
    assert f'PREFECT_API_AUTH_STRING="$(cat {started.private / "password"})"' in started.said


@pytest.mark.parametrize("path", ["admin/version", "flow_runs/filter", "deployments/filter", "csrf-token?client=a"])
def test_nothing_is_answered_without_the_password(path: str, started: Started) -> None:
    method, url = ("POST" if "filter" in path else "GET"), f"{started.url}/api/{path}"

    assert httpx.request(method, url, timeout=120).status_code in (401, 403)
    assert httpx.request(method, url, auth=("pretrieve", "wrong"), timeout=120).status_code in (401, 403)


def test_with_the_password_a_change_needs_a_token_too(started: Started) -> None:
    url = f"{started.url}/api/flows/count"

    forged = httpx.post(url, json={}, auth=started.auth, timeout=120)

    assert (forged.status_code, "CSRF" in forged.text) == (403, True)
    assert call("POST", url, json={}, auth=started.auth).status_code == 200


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "attacker.example", 400), ("Host", "attacker.example:4200", 400), ("Host", "", 400),
        ("Host", "127.0.0.1.attacker.example", 400), ("Origin", "http://attacker.example", 403),
        ("Origin", "null", 403), ("Origin", "http://127.0.0.1:1", 403), ("Origin", "http://localhost", 403),
    ],
)  # fmt: skip
def test_a_foreign_host_or_origin_is_refused(header: str, value: str, status: int, started: Started) -> None:
    for url in (f"{started.url}/api/admin/version", f"{started.url}/pretrieve/login", f"{started.url}/"):
        assert httpx.get(url, auth=started.auth, headers={header: value}, timeout=120).status_code == status
    preflight = {header: value, "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{started.url}/api/flows/count", headers=preflight, timeout=120)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    reports = httpx.get(f"http://127.0.0.1:{started.reports}/page.html", headers={header: value}, timeout=120)
    assert (reports.status_code, "a report" in reports.text) == (status, False)


def test_a_websocket_of_a_foreign_page_is_refused(started: Started) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Origin, Subprotocol

    url = f"ws://127.0.0.1:{started.port}/api/events/out"
    with pytest.raises(InvalidStatus, match="403"):
        connect(url, origin=Origin("http://attacker.example"), subprotocols=[Subprotocol("prefect")])
    for token, answered in ((":".join(started.auth), True), ("wrong", False)):
        with connect(url, origin=Origin(started.url), subprotocols=[Subprotocol("prefect")]) as connection:
            connection.send(json.dumps({"type": "auth", "token": token}))
            assert ("auth_success" in _received(connection)) == answered


def _received(connection: object) -> str:
    """The next message, or the reason why there is none."""
    from websockets.exceptions import ConnectionClosed

    try:
        return str(connection.recv(timeout=120))  # type: ignore[attr-defined]
    except ConnectionClosed as closed:
        return str(closed)


def test_only_reports_are_served(started: Started) -> None:
    url = f"http://127.0.0.1:{started.reports}"
    (started.home / "artifacts" / "reports" / "out").symlink_to(started.private)

    page = httpx.get(f"{url}/page.html", timeout=120)

    assert (page.status_code, page.text, page.headers["x-frame-options"]) == (200, "a report", "DENY")
    assert "script-src 'none'" in page.headers["content-security-policy"]
    for path in ("out/password", "out/", "%2e%2e/.prefect/services/password"):
        assert httpx.get(f"{url}/{path}", timeout=120).status_code == 404


def test_the_server_of_a_single_run_refuses_the_same(tmp_path: Path) -> None:
    env = environment(tmp_path, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="300")

    done = subprocess.run([sys.executable, "-c", EMBEDDED], env=env, capture_output=True, text=True, timeout=600)

    assert done.stdout.split() == ["200", "401", "400", "403"], done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a network namespace")
def test_another_machine_of_the_network_cannot_connect(started: Started) -> None:
    """The other machine is a network namespace that reaches this one through a pair of network cards."""
    name, ours, theirs = f"pretrieve-{uuid4().hex[:6]}", f"p{uuid4().hex[:8]}", f"p{uuid4().hex[:8]}"
    here, there = "198.51.100.1", "198.51.100.2"
    inside = ["ip", "netns", "exec", name]
    for command in (
        ["ip", "netns", "add", name],
        ["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name],
        ["ip", "addr", "add", f"{here}/30", "dev", ours], ["ip", "link", "set", ours, "up"],
        [*inside, "ip", "addr", "add", f"{there}/30", "dev", theirs], [*inside, "ip", "link", "set", theirs, "up"],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    try:
        with socket.create_server((here, 0)) as reachable:
            ports = [str(port) for port in (reachable.getsockname()[1], started.port, started.reports)]
            tried = subprocess.run(
                [*inside, sys.executable, "-c", CONNECT, here, *ports], capture_output=True, text=True, timeout=120
            )
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=120)

    assert tried.stdout.split() == ["connected", "refused", "refused"], tried.stderr


def test_the_printed_address_logs_a_browser_in_once(started: Started) -> None:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    [address] = re.findall(r"http\S+/pretrieve/login#\S+", started.said)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            first, second = (chromium.new_context().new_page() for _ in range(2))
            for page in (first, second):
                page.set_default_timeout(300_000)
                page.route(lambda url: not url.startswith(started.url), lambda route: route.abort())
            first.goto(address)
            first.get_by_role("link", name="reproduce").first.wait_for()
            assert "/v2/deployments" in first.url
            first.goto(f"{started.url}/v2/work-pools")  # a request with a token
            first.get_by_role("link", name="gpu", exact=True).first.wait_for()
            second.goto(address)
            second.get_by_text("This address has been used").wait_for()
            assert second.evaluate("localStorage.getItem('prefect-password')") is None
            second.goto(f"{started.url}/v2/deployments")
            second.get_by_label("Password").or_(second.get_by_role("textbox")).first.wait_for()
        finally:
            chromium.close()
