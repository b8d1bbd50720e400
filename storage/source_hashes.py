"""The hashes of large files from outside the store, remembered from one process to the next.

A data set of 25 GB takes a minute to read, and every run and child run must know it by its content. A file is taken to
be the same while its path, size, inode and both times of change are. What an artifact holds is always read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from storage.errors import UserError
from storage.files import sha256_of, write_atomically

LARGE = 2**26  # bytes: smaller files are read in a tenth of a second
SETTLED_SECONDS = 5.0  # a file that has just changed may change again within the same tick of its clock


def sha256_of_source(path: Path) -> str:
    """The sha256 of a file; of a large one that has not changed since it was last read, without reading it."""
    status = path.stat()
    if status.st_size < LARGE:
        return sha256_of(path)
    seen = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = _folder() / hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]
    try:
        known = json.loads(note.read_text())
        if known["of"] == seen:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = sha256_of(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
        _note(note, {"of": seen, "sha256": found})
    return found


def _folder() -> Path:
    """Below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pretrieve" / "sha256"


def _note(note: Path, known: dict[str, object]) -> None:
    """Remember; where the cache folder cannot be written, the file is read again next time."""
    with contextlib.suppress(OSError, UserError):
        write_atomically(note, json.dumps(known) + "\n")
