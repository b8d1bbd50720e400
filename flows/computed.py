"""What a reading command computes with a stage: in the store, or, where that is read-only, in a temporary folder."""

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
    """The artifact of a stage that `call` calls, for the block: from the store, or built there.

    Where the store is read-only and has no such artifact, it is built in a folder that is deleted after the block.
    """
    tell = Terminal(stderr=True).print
    with session(Session(store, planning=True)):
        planned = call()
    if store.is_read_only and store.manifest(planned.stage, planned.key) is None:
        with tempfile.TemporaryDirectory(prefix="pretrieve-") as scratch:
            with session(Session(Store(Path(scratch)), print_line=tell)):
                made = call()
            yield made
    else:
        with noted(store, command, planned.reference) as note:
            with session(Session(store, print_line=tell, note=note)):
                made = call()
            yield made
            note.finish()
