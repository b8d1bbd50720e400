"""The services of `pretrieve up`: their commands, environments and files.

STORE/.prefect/server/     the Prefect server's home, with its database
STORE/.prefect/services/   the running processes (flows/prefect_server/processes.py), the pools that `down --drain`
                           has paused, and the password
STORE/.prefect/logs/       the services' output
STORE/.prefect/results/    results of stages, for every worker
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from flows.prefect_server.login import LOGIN, LOGIN_FILE
from flows.recipe.shipped import PROJECT

HEARTBEAT_SECONDS = 30
AUTH = "PREFECT_SERVER_API_AUTH_STRING"
SECONDS_TO_LOG_IN = 900.0
# Settings of another server in the user's profile or shell must not reach ours.
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
FOREIGN = (
    "PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH", "PREFECT_UI_URL", "PREFECT_UI_API_URL", "PRETRIEVE_DATABASE",
)  # fmt: skip
FOREIGN_DATABASE = ("PREFECT_SERVER_DATABASE_", "PREFECT_API_DATABASE_")
"""The beginnings of variables that name a database; one of them would win over the database of `up`."""


@dataclass(frozen=True)
class ServicePaths:
    """The files of a store's services."""

    store: Path

    @property
    def folder(self) -> Path:
        """The folder of the running processes."""
        return self.store / ".prefect" / "services"

    @property
    def home(self) -> Path:
        """Prefect's home, which only the services use."""
        return self.store / ".prefect" / "server"

    @property
    def password(self) -> Path:
        """The file with user:password of the server."""
        return self.folder / "password"

    @property
    def login(self) -> Path:
        """The file with the code of the login page."""
        return self.folder / "login"

    @property
    def database(self) -> Path:
        """The file with the address of the server's PostgreSQL; without it the server uses SQLite."""
        return self.folder / "database"

    def log(self, name: str) -> Path:
        """Return the file with a service's output."""
        return self.store / ".prefect" / "logs" / f"{name}.log"


def known_secret(paths: ServicePaths) -> str | None:
    """Return user:password from PREFECT_SERVER_API_AUTH_STRING or from the store; None where neither has them."""
    if login := os.environ.get(AUTH):
        return login
    return paths.password.read_text(encoding="utf-8").strip() if paths.password.exists() else None


def secret(paths: ServicePaths) -> str:
    """Return user:password of the server; where there is none, generate one and keep it in the store."""
    if not (known := known_secret(paths)):
        known = f"pretrieve:{secrets.token_urlsafe(32)}"
        write_for_owner(paths.password, known)
    return known


def login_address(paths: ServicePaths, server: str) -> str:
    """Return an address that logs a browser in. It works once, within 15 minutes.

    It holds a code that the server exchanges for the password, so that no terminal, log or history has the password.
    """
    code = secrets.token_urlsafe(32)
    write_for_owner(paths.login, json.dumps({"code": code, "until": time.time() + SECONDS_TO_LOG_IN}))
    return f"{server}{LOGIN}#{code}"


def close_folders(paths: ServicePaths) -> None:
    """Create the folders of the password and of the server's database, closed to other users."""
    for folder in (paths.folder, paths.home):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def write_for_owner(path: Path, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # else it would keep its mode
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def service_environment(name: str, paths: ServicePaths, port: int) -> dict[str, str]:
    """Return the environment of the server or of the reports' pages; only the server's has the database's address."""
    needed = name == "server" and paths.database.exists()
    return _environment(paths, port) | (
        {DATABASE: paths.database.read_text(encoding="utf-8").strip()} if needed else {}
    )


def _environment(paths: ServicePaths, port: int) -> dict[str, str]:
    """Return what all services have in their environment: Prefect's home and password, and no telemetry."""
    inherited = {
        name: value for name, value in os.environ.items()
        if name not in FOREIGN and not name.startswith(FOREIGN_DATABASE)
    }  # fmt: skip
    own = f"http://127.0.0.1:{port}"
    return inherited | {
        "PREFECT_HOME": str(paths.home),
        "PREFECT_UI_URL": own,
        AUTH: secret(paths),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": os.environ.get("PREFECT_SERVER_CORS_ALLOWED_ORIGINS") or own,
        LOGIN_FILE: str(paths.login),
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def worker_environment(paths: ServicePaths, port: int, reports_port: int) -> dict[str, str]:
    """Return a worker's environment, with the server's password."""
    settings = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": secret(paths),
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(paths.store / ".prefect" / "results"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PRETRIEVE_HOME": str(PROJECT),
        "PRETRIEVE_STORE": str(paths.store),
        "PRETRIEVE_REPORTS_URL": os.environ.get("PRETRIEVE_REPORTS_URL") or f"http://127.0.0.1:{reports_port}",
    }
    if collections := os.environ.get("PRETRIEVE_COLLECTIONS"):
        settings["PRETRIEVE_COLLECTIONS"] = str(Path(collections).resolve())
    return _environment(paths, port) | settings


def server_command(port: int) -> list[str]:
    """Return the command of the API, the UI and the background services, on loopback."""
    return [sys.executable, "-m", "flows.prefect_server.serve", "prefect", "--host", "127.0.0.1", "--port", str(port)]


def reports_command(paths: ServicePaths, port: int) -> list[str]:
    """Return the command of the server of the reports' pages, on loopback."""
    folder = paths.store / "reports"
    module = "flows.prefect_server.serve"
    command = [sys.executable, "-m", module, "reports", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--directory", str(folder)]


def worker_command(pool: str, name: str | None, limit: int) -> list[str]:
    """Return the command of a worker that runs up to `limit` runs of a pool at a time; Prefect names it for None."""
    command = [sys.executable, "-m", "flows.prefect_server.worker", "--pool", pool, "--limit", str(limit)]
    return [*command, "--name", name] if name else command


def workers(gpus: list[str]) -> dict[str, list[str]]:
    """Return each worker's command: one for the CPU, and one per GPU (at least one), which sees only that GPU."""
    runs = max(2, (os.cpu_count() or 2) // 4)  # a run on the cpu pool mostly waits for the gpu pool
    by_name = {"cpu-0": worker_command("cpu", "cpu-0", runs)}
    for number, gpu in enumerate(gpus or [""]):
        name = f"gpu-{number}"
        command = worker_command("gpu", name, 1)
        by_name[name] = ["env", f"CUDA_VISIBLE_DEVICES={gpu}", *command] if gpu else command
    return by_name


def notifier_command() -> list[str]:
    """Return the command that reports failed runs."""
    return [sys.executable, "-m", "flows.cli", "notify"]


def supervisor_command(paths: ServicePaths) -> list[str]:
    """Return the command that starts again what has died."""
    return [sys.executable, "-m", "flows.prefect_server.supervisor", str(paths.store)]


def local_gpus() -> list[str]:
    """Return this machine's GPUs, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) and torch.cuda.is_available():
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
