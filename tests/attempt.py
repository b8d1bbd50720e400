"""The command line with one command more: `attempt FOLDER` builds two stages, as `reproduce` builds its own.

The first, `wait`, begins with FOLDER/began and lasts until FOLDER/go is there. The second has nothing to do.
FOLDER/stuck has the first never end, and FOLDER/limit names a limit of the process and its value.
"""

from __future__ import annotations

import ctypes
import random
import resource
import sys
import time
from pathlib import Path

from rich.console import Console

from flows import interrupt
from flows.cli import app, main
from flows.prefect_server.as_flow import as_flow
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store import begun_runs
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Execution, Session, session
from tasks.stage import stage

ROWS = [{"query_id": "1", "text": random.Random(1).randbytes(200_000).hex()}]  # more than a full disk still takes


@stage(version=1, table=Queries)
def wait(out: Path) -> None:
    """Write a row when it may."""
    folder = out.parent.parent.parent
    assert "prefect.server.api.server" not in sys.modules  # 5 s of CPU: only the embedded server's process needs it
    (folder / "began").touch()
    if (folder / "stuck").exists():
        interrupt.SECONDS_TO_UNWIND = 2  # this test waits for all of them
        in_c_code()
    while not (folder / "go").exists():
        time.sleep(0.05)
    write_rows(out, Queries, ROWS)


def in_c_code() -> None:
    """Never come back, not even for a signal: the mutex is locked twice."""
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


@stage(version=1, table=Queries)
def follow(out: Path, before: Artifact[Queries]) -> None:
    """Write a row."""
    write_rows(out, Queries, ROWS)


@app.command()
def attempt(folder: Path, plain: bool = False) -> None:
    """Build both stages, in a flow or as plain calls."""
    if (limit := folder / "limit").exists():
        number, value = map(int, limit.read_text().split())
        resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
    current = Session(
        Store(folder / "store"), Execution(workers=1, threads=1, device="cpu"),
        print_line=Console(soft_wrap=True).print,
    )  # fmt: skip

    begun_runs.begin()  # as the note of a real run does

    def build() -> str:
        with session(current):
            return follow(wait()).key

    if plain:
        build()
    else:
        as_flow("attempt", "attempt", current, build)


if __name__ == "__main__":
    main()
