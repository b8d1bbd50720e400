"""What `pretrieve up` runs on one machine, and with which environment.

STORE/.prefect/server/     the Prefect server's home, with its database
STORE/.prefect/services/   what runs (flows/background.py), and what a `down --drain` has paused
STORE/.prefect/logs/       what it says
STORE/.prefect/results/    results of stages, where every worker finds them
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from flows.read_recipe import PROJECT

PREFECT = (sys.executable, "-m", "prefect")
HEARTBEAT_SECONDS = 30
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

    def log(self, name: str) -> Path:
        """What a service says."""
        return self.store / ".prefect" / "logs" / f"{name}.log"


def server_environment(place: Place, port: int) -> dict[str, str]:
    """The server's environment: a home of its own, and nothing sent home."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return kept | {
        "PREFECT_HOME": str(place.home),
        "PREFECT_UI_URL": f"http://127.0.0.1:{port}",
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def worker_environment(place: Place, port: int, reports_port: int) -> dict[str, str]:
    """A worker's environment; a server that asks for a password (PREFECT_SERVER_API_AUTH_STRING) is given it."""
    given = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(place.store / ".prefect" / "results"),
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "PRETRIEVE_HOME": str(PROJECT),
        "PRETRIEVE_STORE": str(place.store),
        "PRETRIEVE_REPORTS_URL": os.environ.get("PRETRIEVE_REPORTS_URL") or f"http://127.0.0.1:{reports_port}",
    }
    if secret := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        given["PREFECT_API_AUTH_STRING"] = secret
    if collections := os.environ.get("PRETRIEVE_COLLECTIONS"):
        given["PRETRIEVE_COLLECTIONS"] = str(Path(collections).resolve())
    return server_environment(place, port) | given


def server_command(port: int) -> list[str]:
    """The API, the UI and the background services, for this machine alone."""
    return [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]


def reports_command(place: Place, port: int) -> list[str]:
    """The reports' folder as plain pages, for this machine alone."""
    folder = place.store / "reports"
    return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]


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
