"""What `pretrieve up` runs on one machine, and with which environment.

STORE/.prefect/server/     the Prefect server's home, with its database
STORE/.prefect/services/   what runs (flows/prefect_server/processes.py), what a `down --drain` has paused, and the
password STORE/.prefect/logs/       what it says STORE/.prefect/results/    results of stages, where every worker finds
them
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from flows.prefect_server.serve import LOGIN, LOGIN_FILE
from flows.recipe.shipped import PROJECT

PREFECT = (sys.executable, "-m", "prefect")
HEARTBEAT_SECONDS = 30
AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SECONDS_TO_LOG_IN = 900.0
# What a user's own profile or shell says of another server must not reach ours.
FOREIGN = (
    "PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH", "PREFECT_UI_URL", "PREFECT_UI_API_URL",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A store and what belongs to the services that run for it."""

    store: Path

    @property
    def folder(self) -> Path:
        """What runs."""
        return self.store / ".prefect" / "services"

    @property
    def home(self) -> Path:
        """Prefect's own folder, for nobody but the services."""
        return self.store / ".prefect" / "server"

    @property
    def password(self) -> Path:
        """user:password of the server."""
        return self.folder / "password"

    @property
    def login(self) -> Path:
        """The code of the address that enters the password into the server's pages."""
        return self.folder / "login"

    def log(self, name: str) -> Path:
        """What a service says."""
        return self.store / ".prefect" / "logs" / f"{name}.log"


def known_secret(place: Place) -> str | None:
    """Return user:password of the server: PREFECT_SERVER_API_AUTH_STRING, else the store's own; None if neither is."""
    if given := os.environ.get(AUTH):
        return given
    return place.password.read_text().strip() if place.password.exists() else None


def secret(place: Place) -> str:
    """Return user:password of the server; where none is known, a random one is kept in the store."""
    if not (known := known_secret(place)):
        known = f"pretrieve:{secrets.token_urlsafe(32)}"
        _write_for_owner(place.password, known)
    return known


def login_address(place: Place, server: str) -> str:
    """Return an address that enters the password into the server's pages, once and for a quarter of an hour.

    It has a code that the server exchanges for the password, so that a password is in no terminal, log or history.
    """
    code = secrets.token_urlsafe(32)
    _write_for_owner(place.login, json.dumps({"code": code, "until": time.time() + SECONDS_TO_LOG_IN}))
    return f"{server}{LOGIN}#{code}"


def close_folders(place: Place) -> None:
    """Make the folders with the password and with the server's database, and close them to other users."""
    for folder in (place.folder, place.home):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def _write_for_owner(path: Path, text: str) -> None:
    """Write a file that only its owner can read, as a complete file or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # its mode would stay
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def server_environment(place: Place, port: int) -> dict[str, str]:
    """Return the server's environment: a home and a password of its own, and nothing sent home."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    own = f"http://127.0.0.1:{port}"
    return kept | {
        "PREFECT_HOME": str(place.home),
        "PREFECT_UI_URL": own,
        AUTH: secret(place),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": os.environ.get("PREFECT_SERVER_CORS_ALLOWED_ORIGINS") or own,
        LOGIN_FILE: str(place.login),
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def worker_environment(place: Place, port: int, reports_port: int) -> dict[str, str]:
    """Return a worker's environment, with the server's password."""
    given = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": secret(place),
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(place.store / ".prefect" / "results"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PRETRIEVE_HOME": str(PROJECT),
        "PRETRIEVE_STORE": str(place.store),
        "PRETRIEVE_REPORTS_URL": os.environ.get("PRETRIEVE_REPORTS_URL") or f"http://127.0.0.1:{reports_port}",
    }
    if collections := os.environ.get("PRETRIEVE_COLLECTIONS"):
        given["PRETRIEVE_COLLECTIONS"] = str(Path(collections).resolve())
    return server_environment(place, port) | given


def server_command(port: int) -> list[str]:
    """The API, the UI and the background services, for this machine alone."""
    return [sys.executable, "-m", "flows.prefect_server.serve", "prefect", "--host", "127.0.0.1", "--port", str(port)]


def reports_command(place: Place, port: int) -> list[str]:
    """The reports' folder as plain pages, for this machine alone."""
    folder = place.store / "reports"
    command = [
        sys.executable,
        "-m",
        "flows.prefect_server.serve",
        "reports",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    return [*command, "--directory", str(folder)]


def worker_command(pool: str, name: str, limit: int) -> list[str]:
    """A worker that runs up to `limit` runs of a pool at a time."""
    command = [*PREFECT, "worker", "start", "--pool", pool, "--name", name, "--type", "process"]
    return [*command, "--limit", str(limit)]


def workers(gpus: list[str]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Command and further environment by name: one for the CPU, and one a GPU, or one where there is none."""
    runs = max(2, (os.cpu_count() or 2) // 4)  # most of what a run on the cpu pool does is to wait for the gpu pool
    found: dict[str, tuple[list[str], dict[str, str]]] = {"cpu-0": (worker_command("cpu", "cpu-0", runs), {})}
    for number, gpu in enumerate(gpus or [""]):
        name = f"gpu-{number}"
        found[name] = (worker_command("gpu", name, 1), {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    return found


def gpus_here() -> list[str]:
    """This machine's GPUs, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) and torch.cuda.is_available():
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
