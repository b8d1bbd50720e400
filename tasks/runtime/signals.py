"""SIGTERM requests that a process ends: a training notes it and ends when it has saved a checkpoint.

Python delivers signals to the main thread only; in any other thread these blocks change nothing. Other threads, which
would end the process, learn from `is_sigterm_deferred` and `is_building_stage` what the main thread finishes first.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_holding = set["DeferredSigterm"]()
_stages = list[None]()  # one entry for each stage that is being built, in any thread


def is_sigterm_deferred() -> bool:
    """Return whether SIGTERM is deferred until a training has saved a checkpoint."""
    return bool(_holding)


def is_building_stage() -> bool:
    """Return whether a stage is being built, which publishes its artifact without a server."""
    return bool(_stages)


@contextlib.contextmanager
def building_stage() -> Iterator[None]:
    """Note that this block builds a stage's artifact."""
    _stages.append(None)
    try:
        yield
    finally:
        _stages.pop()


class DeferredSigterm:
    """A block in which SIGTERM is only noted, however often it comes; its earlier handler gets it on request.

    What was noted and not delivered is delivered at the end of the block.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: Any = None
        self._noting = self._note

    def __enter__(self) -> DeferredSigterm:
        # None stands for a handler that is not Python's, and that Python could not put back.
        if _in_main_thread() and (before := signal.getsignal(signal.SIGTERM)) is not None:
            self._before = before
            self._handle_instead()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            self._put_back()
            if self.noted:
                signal.raise_signal(signal.SIGTERM)

    def _note(self, *_: object) -> None:
        self.noted = True

    def deliver(self) -> None:
        """Have the handler of before do what it does: end the process, raise an exception, or nothing."""
        self.noted = False
        if self._before is None:
            return
        self._put_back()
        signal.raise_signal(signal.SIGTERM)
        self._handle_instead()

    def _handle_instead(self) -> None:
        signal.signal(signal.SIGTERM, self._noting)
        _holding.add(self)
        _give_to_prefect(self._before, self._noting)

    def _put_back(self) -> None:
        signal.signal(signal.SIGTERM, self._before)
        _holding.discard(self)
        _give_to_prefect(self._noting, self._before)


def _give_to_prefect(known: Any, handler: Any) -> None:
    """Replace the handler `known` in Prefect's record of SIGTERM handlers by another.

    Before a run is cancelled its worker asks the run's process whether Prefect's handler is in place, and calls the
    run Crashed, not Cancelled, where it is not. Prefect has no public way to replace it.
    """
    engine = sys.modules.get("prefect.utilities.engine")
    if engine is not None and getattr(engine, "_prefect_sigterm_handler", None) is known:
        engine._prefect_sigterm_handler = handler  # type: ignore[attr-defined]


class Terminated(BaseException):
    """SIGTERM has come."""


@contextlib.contextmanager
def unwind_on_sigterm(last: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Let SIGTERM unwind this block before it ends the process, if it would end it at once.

    `last` is called just before. A handler that is already there, such as Prefect's, stays.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    raised = False

    def leave(*_: object) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise Terminated

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if raised:
            last()  # before the next signal would end the process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if raised:
            signal.raise_signal(signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
