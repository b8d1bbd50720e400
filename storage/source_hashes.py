"""A cache of the hashes of large files from outside the store, kept from one process to the next.

A data set of 25 GB takes a minute to read, and every run identifies it by its content. A file counts as unchanged while
its path, size, inode and both times of change are the same. The files of artifacts are always read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path

from storage.errors import UserError
from storage.files import cache_folder, sha256_of, write_atomically

LARGE = 2**26  # bytes; smaller files are read in a tenth of a second
SETTLED_SECONDS = 5.0  # a file that has just changed may change again within the same tick of its clock


def sha256_of_source(path: Path) -> str:
    """Return the sha256 of a file. A large file that has not changed since the last time is not read."""
    status = path.stat()
    if status.st_size < LARGE:
        return sha256_of(path)
    identity = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = _folder() / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["of"] == identity:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    digest = sha256_of(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
        _note(note, {"of": identity, "sha256": digest})
    return digest


def _folder() -> Path:
    """Return the folder of the cache, below that of all caches."""
    return cache_folder() / "sha256"


def _note(note: Path, known: dict[str, object]) -> None:
    """Store a hash. Where the cache folder cannot be written, the file is read again next time."""
    with contextlib.suppress(OSError, UserError):
        write_atomically(note, json.dumps(known) + "\n")
