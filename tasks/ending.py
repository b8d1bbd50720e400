"""SIGTERM asks a process to end: a training notes it and answers when it has saved what it has.

Python delivers signals to the main thread alone; in any other thread these blocks change nothing.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class HeldBack:
    """A block in which SIGTERM is only noted, however often it comes; whoever handled it before has it when told.

    What was noted and not delivered is delivered at the end of the block.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: Any = None

    def __enter__(self) -> HeldBack:
        # None stands for a handler that is not Python's, and that Python could not put back.
        if _in_main_thread() and (before := signal.getsignal(signal.SIGTERM)) is not None:
            signal.signal(signal.SIGTERM, self._note)
            self._before = before
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            if self.noted:
                signal.raise_signal(signal.SIGTERM)

    def _note(self, *_: object) -> None:
        self.noted = True

    def deliver(self) -> None:
        """Have the handler of before do what it does: end the process, raise an exception, or nothing."""
        self.noted = False
        if self._before is None:
            return
        signal.signal(signal.SIGTERM, self._before)
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._note)


class Told(BaseException):
    """SIGTERM has come."""


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Where SIGTERM would end the process at once, have it leave this block in order first, and then end it so.

    A handler that is already there, such as Prefect's, stays.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    told = False

    def leave(*_: object) -> None:
        nonlocal told
        if not told:
            told = True
            raise Told

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if told:
            signal.raise_signal(signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
