"""Who may call the servers of `pretrieve up`, and the code that logs a browser in; tests/services/test_closed.py has
the servers themselves."""

import asyncio
import json
import stat
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.prefect_server.login import LOGIN, redeem
from flows.prefect_server.request_guard import Callers, Guard, callers
from flows.prefect_server.serve import ReportsHandler
from flows.prefect_server.services import (
    ServicePaths,
    close_folders,
    known_secret,
    login_address,
    secret,
    service_environment,
)

OWN = "http://127.0.0.1:4200"
ALLOWED = Callers(frozenset({"127.0.0.1", "::1", "prefect.example"}), frozenset({"https://prefect.example"}))


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:4200", None, None), ("127.0.0.1:4200", OWN, None), ("[::1]:4200", "http://[::1]:4200", None),
        ("PREFECT.example", "https://Prefect.example", None), ("127.0.0.1:4200", "https://prefect.example", None),
        (None, None, 400), ("", None, 400), ("attacker.example", None, 400), ("attacker.example", OWN, 400),
        ("127.0.0.1.attacker.example", None, 400), ("127.0.0.1, attacker.example", None, 400),
        ("127.0.0.1:4200, attacker.example", None, 400), ("attacker.example@127.0.0.1:4200", None, 400),
        ("127.0.0.1:4200", "http://[", 403),
        ("127.0.0.1@attacker.example", None, 400), ("[::1", None, 400), ("127.0.0.1:4200", "null", 403),
        ("127.0.0.1:4200", "", 403), ("127.0.0.1:4200", "http://127.0.0.1:4201", 403),
        ("127.0.0.1:4200", f"{OWN}, http://attacker.example", 403),
        ("127.0.0.1:4200", "http://127.0.0.1:4200.attacker.example", 403),
        ("127.0.0.1:4200", "file://127.0.0.1:4200", 403),
    ],
)  # fmt: skip
def test_requests_of_other_sites_are_refused(host: str | None, origin: str | None, status: int | None) -> None:
    refused = ALLOWED.refusal(host, origin)

    assert (refused and refused[0]) == status


def test_callers_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_UI_URL", "https://Prefect.example:4200/")
    monkeypatch.setenv("PRETRIEVE_HOSTS", "server, gpu-1")
    monkeypatch.delenv("PRETRIEVE_REPORTS_URL", raising=False)

    allowed = callers("https://Prefect.example/,*")

    assert allowed.hosts == {"127.0.0.1", "localhost", "::1", "prefect.example", "server", "gpu-1"}
    assert allowed.origins == {"https://prefect.example"}  # never every origin


def test_a_login_code_works_once_and_not_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "login"
    assert not redeem(file, b"code")
    file.write_text(json.dumps({"code": "code", "until": time.time() - 1}))
    assert not redeem(file, b"code")
    file.write_text(json.dumps({"code": "code", "until": time.time() + 60}))

    assert not redeem(file, b"other")
    assert redeem(file, b"code")
    assert not redeem(file, b"code")


def test_the_login_page_gives_the_password_for_the_code_only(tmp_path: Path) -> None:
    (tmp_path / "login").write_text(json.dumps({"code": "code", "until": time.time() + 60}))

    async def prefect(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"Prefect"})

    async def ask() -> list[httpx.Response]:
        app = Guard(prefect, ALLOWED, tmp_path / "login", "user:password")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as client:
            requests: list[tuple[str, str, Any]] = [
                ("GET", LOGIN, None), ("POST", LOGIN, "guess"), ("POST", LOGIN, "code"), ("POST", LOGIN, "code"),
                ("GET", "/", None),
            ]  # fmt: skip
            return [await client.request(method, path, content=body) for method, path, body in requests]

    page, guessed, first, second, other = asyncio.run(ask())

    assert (guessed.status_code, first.status_code, second.status_code) == (403, 200, 403)
    assert [first.text == "user:password", other.text] == [True, "Prefect"]
    assert not any("password" in answer.text.replace("prefect-password", "") for answer in (page, guessed, second))
    assert first.headers["cache-control"] == "no-store"
    assert {answer.headers["x-frame-options"] for answer in (page, first, other)} == {"DENY"}


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[str]:
    """The address of a server of reports/, beside which is a file that is none."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "page.html").write_text("a report")
    (tmp_path / "private").write_text("no report")
    (tmp_path / "reports" / "link").symlink_to(tmp_path / "private")
    handler = partial(ReportsHandler, directory=str(tmp_path / "reports"), allowed=ALLOWED)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_reports_are_for_own_callers_and_end_at_their_folder(reports: str) -> None:
    page = httpx.get(f"{reports}/page.html")
    assert (page.status_code, page.text) == (200, "a report")
    assert "script-src 'none'" in page.headers["content-security-policy"]
    for method in ("GET", "HEAD"):
        assert httpx.request(method, f"{reports}/link").status_code == 404
        assert httpx.request(method, f"{reports}/%2e%2e/private").status_code == 404
        assert httpx.request(method, f"{reports}/page.html", headers={"Host": "attacker.example"}).status_code == 400
        assert httpx.request(method, f"{reports}/page.html", headers={"Origin": "null"}).status_code == 403


def test_a_store_keeps_a_password_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    paths = ServicePaths(tmp_path)
    close_folders(paths)
    assert known_secret(paths) is None

    built = secret(paths)

    assert built.startswith("pretrieve:")
    assert len(built) >= len("pretrieve:") + 43
    assert secret(paths) == known_secret(paths) == built
    address = login_address(paths, OWN)
    assert built.partition(":")[2] not in address
    for file in (paths.password, paths.login):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.folder.stat().st_mode) == stat.S_IMODE(paths.home.stat().st_mode) == 0o700
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "mine:own")
    assert secret(paths) == known_secret(paths) == "mine:own"
    assert paths.password.read_text() == built


def test_the_server_protects_itself_whatever_the_shell_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_CSRF_PROTECTION_ENABLED", "false")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "of:another")
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    paths = ServicePaths(tmp_path)
    close_folders(paths)

    env = service_environment("server", paths, 4200)

    assert env["PREFECT_SERVER_API_AUTH_STRING"] == secret(paths)
    assert env["PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"] == "true"
    assert env["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] == OWN
    assert "PREFECT_API_AUTH_STRING" not in env
