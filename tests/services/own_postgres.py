"""A PostgreSQL of a test's own, on a free port of loopback, with a password."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.services.servers import Service, start, wait_for

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))  # Debian's; not on the PATH


@contextmanager
def postgres(
    user: str = "prefect", password: str | None = None, database: str = "prefect"
) -> Iterator[tuple[str, str]]:
    """A database of a user; its host and port, and its password. PostgreSQL refuses to run as root."""
    assert BINARIES, "PostgreSQL is not installed: `make test-services` does that"
    binaries, password, port = BINARIES[-1], password or secrets.token_hex(8), free_port()
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # not below pytest's, which others may not enter
    folder.chmod(0o755)
    file = folder / "password"
    file.write_text(password)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        shutil.chown(file, "postgres")
    built = [str(binaries / "initdb"), "--pgdata", str(folder / "data"), "--username", user, "--auth", "scram-sha-256"]
    subprocess.run([*_as_postgres(), *built, "--pwfile", str(file)], check=True, capture_output=True, cwd="/")
    options = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
    quick = ["-c", "fsync=off", "-c", "max_connections=200"]
    command = [*_as_postgres(), str(binaries / "postgres"), "-D", str(folder / "data"), *options, *quick]
    server = start("postgres", command, dict(os.environ), folder.with_suffix(".log"), Path("/"))
    try:
        psql = [str(binaries / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", user, "-d", "postgres", "-Atc"]
        env = os.environ | {"PGPASSWORD": password}
        wait_for(lambda: _ran([*psql, "select 1"], env), 2, "PostgreSQL answers")
        assert _ran([*psql, f'create database "{database}"'], env)
        yield f"127.0.0.1:{port}", password
    finally:
        _stop(server)
        shutil.rmtree(folder, ignore_errors=True)


def save(database: str, dump: Path) -> None:
    """Write the content of a database, named as a URL, to a file, which is there only once it is complete."""
    unfinished = dump.with_suffix(".unfinished")
    subprocess.run([str(BINARIES[-1] / "pg_dump"), "--file", str(unfinished), database], check=True)
    unfinished.replace(dump)


def load(database: str, dump: Path) -> None:
    """Fill an empty database with what `save` has written."""
    command = [str(BINARIES[-1] / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(dump), database]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _as_postgres() -> list[str]:
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


def _ran(command: list[str], env: dict[str, str]) -> bool:
    return subprocess.run(command, env=env, capture_output=True).returncode == 0


def _stop(server: Service) -> None:
    server.stop()
    server.log.unlink(missing_ok=True)
