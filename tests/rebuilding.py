"""A chain of three stages as a command: `python -m tests.rebuilding FOLDER [--rebuild NAME]`.

FOLDER/calls has the name of each stage body that was called. `middle` waits while FOLDER/wait exists, and writes the
text of FOLDER/text.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from flows.build import build, print_stages
from flows.store.rebuild import request_rebuild
from flows.terminal import say
from storage.artifact import Artifact
from storage.rows import write_rows
from storage.store.rebuilds import remove_finished
from storage.store.run_notes import noted
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Execution, Session, session
from tasks.stage import stage


def _write(out: Path, name: str, text: str) -> None:
    with (out.parent.parent.parent / "calls").open("a") as file:
        file.write(f"{name}\n")
    write_rows(out, Queries, [{"query_id": name, "text": text}])


@stage(version=1, table=Queries)
def start(out: Path) -> None:
    """Write a row."""
    _write(out, "start", "")


@stage(version=1, table=Queries)
def middle(out: Path, before: Artifact[Queries]) -> None:
    """Write a row with the text of a file, after a file is gone."""
    folder = out.parent.parent.parent
    (folder / "began").touch()
    while (folder / "wait").exists():
        time.sleep(0.05)
    text = folder / "text"
    _write(out, "middle", text.read_text() if text.exists() else "")


@stage(version=1, table=Queries)
def end(out: Path, before: Artifact[Queries]) -> None:
    """Write a row."""
    _write(out, "end", "")


def planned(store: Store) -> Session:
    """Return the plan of the chain."""
    with session(Session(store, planning=True)) as plan:
        end(middle(start()))
    return plan


def main(folder: Path, rebuild: str | None) -> None:
    """Build the chain, or rebuild a part of it."""
    store = Store(folder / "store")
    plan = planned(store)
    if rebuild:
        say(request_rebuild(plan.jobs, rebuild, "chain", store))
    with noted(store, "rebuilding", "chain", plan.jobs) as note:
        execution = Execution(workers=1, threads=1, device="cpu")
        current = Session(store, execution, print_line=say, note=note)
        print_stages("chain", plan.jobs, current)
        build(plan.jobs, "chain", current)
        remove_finished(store.root)
        note.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3] if sys.argv[2:3] == ["--rebuild"] else None)
