"""Stages that reading commands call: in the store, or in a temporary folder where the store is read-only."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flows.terminal import Terminal
from storage.artifact import Artifact
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.session import Session, session


@contextlib.contextmanager
def computed(call: Callable[[], Artifact[Any]], store: Store, command: str) -> Iterator[Artifact[Any]]:
    """Yield the artifact of the stage that `call` calls, from the store or built there.

    Where the store is read-only and lacks the artifact, it is built in a folder that is deleted after the block.
    """
    print_line = Terminal(stderr=True).print
    with session(Session(store, planning=True)):
        planned = call()
    if store.is_read_only and store.up_to_date(planned.stage, planned.key) is None:
        with tempfile.TemporaryDirectory(prefix="pretrieve-") as scratch:
            with session(Session(Store(Path(scratch)), print_line=print_line)):
                artifact = call()
            yield artifact
    else:
        with noted(store, command, planned.reference) as note:
            with session(Session(store, print_line=print_line, note=note)):
                artifact = call()
            yield artifact
            note.finish()
