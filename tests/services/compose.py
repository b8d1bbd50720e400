"""docker-compose.yml without Docker: its commands with its environments, as processes of this machine.

What a container brings is translated, and nothing else: a service's host name and port, its volumes' folders, and the
variables of the image's Dockerfile. For the images of PostgreSQL and Redis stand the system's own packages, set up with
the variables and the command that the file gives them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.services.own_postgres import BINARIES
from tests.services.servers import ROOT, WHEEL, Service, start

FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::([-?])((?:[^{}]|\$\{[^{}]*\})*))?\}")


def example() -> dict[str, str]:
    """The variables of .env.example, without those that are commented out."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"^[A-Z_]+=", line))


def passwords() -> dict[str, str]:
    """The files of the folder `secrets` as the example says to make them."""
    names = re.findall(r"> secrets/(\w+)", (ROOT / ".env.example").read_text())
    built = {name: secrets.token_hex(24) for name in names}
    return built | {"prefect_auth": f"operator:{built['prefect_auth']}"}


def entrypoint() -> list[str]:
    """What the image puts before each command."""
    [line] = re.findall(r"^ENTRYPOINT (.*)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return list(json.loads(line))


def interpolated(value: Any, variables: dict[str, str]) -> Any:
    """A part of the file with its `${…}` replaced as Compose does; a KeyError where a needed one is not set."""
    if isinstance(value, dict):
        return {name: interpolated(part, variables) for name, part in value.items()}
    if isinstance(value, list):
        return [interpolated(part, variables) for part in value]
    if not isinstance(value, str):
        return value

    def replaced(results: re.Match[str]) -> str:
        name, kind, rest = results.groups()
        if name is None:
            return "$"
        if variables.get(name):
            return variables[name]
        if kind == "?":
            raise KeyError(f"{name}: {rest}")
        return str(interpolated(rest or "", variables))

    return VARIABLE.sub(replaced, value)


def services(variables: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The file's services, interpolated."""
    results: dict[str, dict[str, Any]] = interpolated(yaml.safe_load(FILE.read_text())["services"], variables)
    return results


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in text.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


def secret_files(variables: dict[str, str]) -> dict[str, str]:
    """The file of each of Compose's secrets, which a container has below /run/secrets."""
    secrets = interpolated(yaml.safe_load(FILE.read_text())["secrets"], variables)
    return {name: str(row["file"]) for name, row in secrets.items()}


@dataclass
class Stack:
    """The services of the file that run here."""

    home: Path
    variables: dict[str, str]
    passwords: dict[str, str]
    ports: dict[str, int]
    """Where its services listen here; whoever has started PostgreSQL says where it does."""
    started: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        folder = self.home / "secrets"
        folder.mkdir()
        for name, password in self.passwords.items():
            (folder / name).write_text(f"{password}\n")
        self.defined = services(self.variables)
        self.secrets = secret_files({"PRETRIEVE_SECRETS_FOLDER": str(folder)} | self.variables)
        for name in ("redis", "server", "reports", "health-cpu", "health-gpu"):
            self.ports[name] = free_port()

    @property
    def api(self) -> str:
        """The server's API."""
        return f"http://127.0.0.1:{self.ports['server']}/api"

    @property
    def store(self) -> Path:
        """What the volume at /store is."""
        return self.home / "store"

    @property
    def data(self) -> Path:
        """What the volume at /data is for the service that fills it; others read this machine's collections."""
        return self.home / "volume"

    @property
    def auth(self) -> tuple[str, str]:
        """User and password of the API."""
        user, _, password = self.passwords["prefect_auth"].partition(":")
        return user, password

    def here(self, text: str, health: str = "") -> str:
        """A value of a container, as it is on this machine."""
        ports = self.ports
        for there, now in (
            ("http://server:4200", f"http://127.0.0.1:{ports['server']}"),
            ("@redis:6379", f"@127.0.0.1:{ports['redis']}"),
            ("127.0.0.1:4200", f"127.0.0.1:{ports['server']}"),
            ("127.0.0.1:4201", f"127.0.0.1:{ports['reports']}"),
            ("127.0.0.1:8080", f"127.0.0.1:{ports.get(health, 8080)}"),
            ("redis-cli ping", f"redis-cli -p {ports['redis']} ping"),
            ("--host 0.0.0.0 --port 4201", f"--host 127.0.0.1 --port {ports['reports']}"),
        ):
            text = re.sub(re.escape(there) + r"\b", now, text)
        text = re.sub(r"(?<![\w.])/store\b", str(self.store), text)
        text = re.sub(r"/run/secrets/(\w+)", lambda name: self.secrets[name[1]], text)
        whole = {
            "postgres": "127.0.0.1", "redis": "127.0.0.1", "0.0.0.0": "127.0.0.1", "5432": str(ports["postgres"]),
            "6379": str(ports["redis"]), "4200": str(ports["server"]), "/data": str(WHEEL.parent), "/app": str(ROOT),
            "/run/secrets": str(self.home / "secrets"),
        }  # fmt: skip
        return whole.get(text, text)

    def environment(self, name: str, health: str = "") -> dict[str, str]:
        """What a service's process is started with: the image's variables, then the file's, and nothing of ours."""
        inputs = image_environment() | self.defined[name].get("environment", {})
        home = self.home / name
        home.mkdir(parents=True, exist_ok=True)
        base = {
            "PATH": f"{Path(sys.executable).parent}:{BINARIES[-1]}:{os.environ['PATH']}", "HOME": str(home),
            "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PREFECT_WORKER_QUERY_SECONDS": "2",
        }  # fmt: skip
        if health:
            base["PREFECT_WORKER_WEBSERVER_PORT"] = str(self.ports[health])
        return base | {key: self.here(str(value)) for key, value in inputs.items() if key != "PIP_EXTRA_INDEX_URL"}

    def start(self, name: str, health: str = "") -> Service:
        """Start a service of our image with its command."""
        self.data.mkdir(exist_ok=True)
        words = [*entrypoint(), *self.defined[name]["command"]]
        command = [self.here(word).replace("/data", str(self.data)) for word in words]
        env = self.environment(name, health)
        self.started.append(start(name, command, env, self.home / "logs" / f"{name}.log", self.home))
        return self.started[-1]

    def healthy(self, name: str, health: str = "") -> bool:
        """Whether a service's own health check passes."""
        kind, *words = self.defined[name]["healthcheck"]["test"]
        words = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        words = [self.here(word, health) for word in words]
        env = self.environment(name, health) | {"PGHOST": "127.0.0.1", "PGPORT": str(self.ports["postgres"])}
        return subprocess.run(words, env=env, capture_output=True, timeout=300).returncode == 0

    def start_redis(self) -> Service:
        """redis-server by the file's command, on our port and folder."""
        shell, flag, script = self.defined["redis"]["command"]
        (self.home / "redis").mkdir()
        settings = f"dir {self.home / 'redis'}\nport {self.ports['redis']}\nbind 127.0.0.1"
        script = self.here(script).replace("dir /data", settings)
        env = self.environment("redis")
        self.started.append(start("redis", [shell, flag, script], env, self.home / "logs" / "redis.log", self.home))
        return self.started[-1]

    def stop(self) -> None:
        """End everything, the last first."""
        for service in reversed(self.started):
            service.stop()
