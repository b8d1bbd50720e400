"""A migrated SQLite database of Prefect for servers that tests start.

A server that starts in an empty home spends half of its CPU time on Prefect's migrations (7 of 15 seconds). Here
Prefect's own command runs them once for each version, and each server gets a copy.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

NAME = "prefect.db"


def provide(prefect_home: Path) -> None:
    """Copy the migrated database to a home of Prefect that has none."""
    if not (prefect_home / NAME).exists():
        prefect_home.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_migrated(), prefect_home / NAME)


def _migrated() -> Path:
    """Return the migrated database, which the first test process of all that need it builds."""
    folder = Path(tempfile.gettempdir(), f"pretrieve-tests-{getpass.getuser()}-prefect-{version('prefect')}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / NAME).exists():
            with tempfile.TemporaryDirectory(dir=folder) as home:
                _migrate(Path(home))
                os.replace(Path(home, NAME), folder / NAME)
    return folder / NAME


def _migrate(home: Path) -> None:
    """Create the database in a home; its write-ahead log is part of it when the command has ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    subprocess.run(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env=kept | {"PREFECT_HOME": str(home), "DO_NOT_TRACK": "1"}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert not (home / f"{NAME}-wal").exists(), "the write-ahead log was not written back"
