"""Whether this process has begun work that the same command resumes, so that an interruption can say so."""

from __future__ import annotations

import threading

_begun = threading.Event()


def begin() -> None:
    """Note that resumable work has begun, such as a run or a download."""
    _begun.set()


def has_begun() -> bool:
    """Return whether such work has begun; commands that only read the store begin none."""
    return _begun.is_set()
