"""A limit of the time that a part of a rehearsal takes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class OverTime(BaseException):
    """Raised in the main thread when a block takes longer than its limit; no `except Exception` stops it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OverTime in the block after this many seconds. Call it in the main thread; blocks cannot be nested."""

    def over(number: int, frame: FrameType | None) -> None:
        raise OverTime

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
