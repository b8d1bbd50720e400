"""The command line with one command more: `attempt FOLDER` builds two stages in a flow, as `reproduce` builds its own.

The first, `wait`, begins with FOLDER/began and lasts until FOLDER/go is there. The second has nothing to do.
"""

from __future__ import annotations

import time
from pathlib import Path

from flows.cli import app, main
from flows.reproduce import as_flow
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store import Store
from storage.tables import Queries
from tasks.stage import Execution, Session, session, stage

ROWS = [{"query_id": "1", "text": "river"}]


@stage(version=1, table=Queries)
def wait(out: Path) -> None:
    """Write a row when it may."""
    folder = out.parent.parent.parent
    (folder / "began").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
    write_rows(out, Queries, ROWS)


@stage(version=1, table=Queries)
def follow(out: Path, before: Artifact[Queries]) -> None:
    """Write a row."""
    write_rows(out, Queries, ROWS)


@app.command()
def attempt(folder: Path) -> None:
    """Build both stages."""
    current = Session(Store(folder / "store"), Execution(workers=1, threads=1, device="cpu"), tell=print)

    def build() -> str:
        with session(current):
            return follow(wait()).key

    as_flow("attempt", "attempt", current, build)


if __name__ == "__main__":
    main()
