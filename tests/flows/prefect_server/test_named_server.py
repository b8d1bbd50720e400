"""Which server is named, by what, and how it is addressed: with the settings that Prefect's own client has."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import certifi
import pytest
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings

from flows.doctor import Trouble, _prefect
from flows.prefect_server.api import Api
from flows.prefect_server.as_flow import announce_server, prepare_prefect
from flows.prefect_server.named_server import named_server
from flows.prefect_server.register import check_server
from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime.prefect_task import EMBEDDED
from tests.warm import ROOT

LOGIN = "me:secret"


class Locked(http.server.BaseHTTPRequestHandler):
    """A Prefect API that answers the right user only, and a page that is none."""

    def do_GET(self) -> None:
        expected = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        known = self.headers["Authorization"] == expected
        self.send_response(404 if not self.path.startswith("/api/") else 200 if known else 401)
        self.end_headers()
        self.wfile.write(b'"3.8.8"')

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api"
        server.shutdown()


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the user's profiles, which is the only one of Prefect's settings."""
    with patch.dict(os.environ):
        for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", EMBEDDED):
            os.environ.pop(name, None)
        os.environ["PREFECT_PROFILES_PATH"] = str(tmp_path / "profiles.toml")
        monkeypatch.chdir(tmp_path)
        yield tmp_path / "profiles.toml"
    refresh_global_settings_context()


def write_profile(file: Path, **settings: str) -> None:
    """Write a profile and have Prefect read it, as it does in a new process."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    file.write_text('active = "mine"\n[profiles.mine]\n' + "".join(lines))
    refresh_global_settings_context()


IMPORTS_NOTHING = """
import os, sys
from flows.prefect_server.named_server import named_server, profiles_file
print(named_server())
profiles_file().write_text('active = "mine"\\n[profiles.mine]\\nPREFECT_LOGGING_LEVEL = "INFO"\\n')
print(named_server())
os.environ["PREFECT_API_URL"] = "http://127.0.0.1:4200/api"
print(named_server())
os.environ[sys.argv[1]] = "1"
print(named_server(), "prefect" in sys.modules)
"""


def test_prefect_is_imported_only_where_a_file_may_name_a_server(profiles: Path) -> None:
    """In a process of its own: without its modules, Prefect's threads in this one would end."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_NOTHING, EMBEDDED], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout.splitlines() == ["None", "None", "http://127.0.0.1:4200/api", "None False"], done.stderr


def test_a_server_with_a_password_may_be_named_by_a_profile(profiles: Path, address: str) -> None:
    write_profile(profiles, PREFECT_API_URL=address, PREFECT_API_AUTH_STRING=LOGIN)

    assert named_server() == address
    check_server()
    assert _prefect() == f"the server at {address} answers"
    api = Api.of_settings(outages=True)
    assert (api.url, api.secret, api.outages) == (address, LOGIN, True)
    assert api.send("GET", "admin/version", None) == "3.8.8"


def test_a_refused_user_is_told_the_variable_of_the_client(profiles: Path, address: str, tmp_path: Path) -> None:
    write_profile(profiles, PREFECT_API_URL=address, PREFECT_API_AUTH_STRING="me:wrong")

    for refused in (check_server, _prefect):
        with pytest.raises((UserError, Trouble), match=r"refuses this user \(401\): set PREFECT_API_AUTH_STRING"):
            refused()


def test_an_address_that_is_no_api_is_named(profiles: Path, address: str) -> None:
    write_profile(profiles, PREFECT_API_URL=address.removesuffix("/api"))

    for refused in (check_server, _prefect):
        with pytest.raises((UserError, Trouble), match=r"no Prefect API \(404\); it ends with /api"):
            refused()


def test_the_servers_certificate_is_checked_as_prefect_does(profiles: Path) -> None:
    https = "https://127.0.0.1:4200/api"
    write_profile(profiles, PREFECT_API_URL=https, PREFECT_API_TLS_INSECURE_SKIP_VERIFY="true")
    assert Api.of_settings().verify is False
    write_profile(profiles, PREFECT_API_URL=https, PREFECT_API_SSL_CERT_FILE=certifi.where())
    verify: Any = Api.of_settings().verify
    assert verify.cert_store_stats()["x509_ca"] > 100


@pytest.mark.parametrize("named", [True, False])
def test_an_embedded_servers_database_is_in_the_store_unless_a_profile_names_a_server(
    named: bool, profiles: Path, address: str, tmp_path: Path
) -> None:
    write_profile(profiles, **({"PREFECT_API_URL": address} if named else {"PREFECT_LOGGING_LEVEL": "DEBUG"}))

    prepare_prefect(Store(tmp_path / "store"))

    assert os.environ.get("PREFECT_HOME") == (None if named else str(tmp_path / "store" / ".prefect"))
    refresh_global_settings_context()
    assert get_current_settings().logging.level == ("INFO" if named else "DEBUG")  # the profile is still read


@pytest.mark.parametrize(
    ("named", "embedded", "expected"), [(False, False, 1), (True, False, 0), (False, True, 0)],
    ids=["none", "named", "already started"],
)  # fmt: skip
def test_only_the_start_of_an_embedded_server_is_announced(
    named: bool, embedded: bool, expected: int, profiles: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    if named:
        write_profile(profiles, PREFECT_API_URL=address)
    if embedded:
        monkeypatch.setenv(EMBEDDED, "1")

    announce_server(lines.append)

    assert [line.startswith("starting a Prefect server for this run") for line in lines] == [True] * expected
