"""The command line called in this process: for many commands that end early, at no cost of a new process each."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

import pytest

from flows import cli
from flows.plan import show
from flows.store import verify

IMPORTED = (verify, show)  # what takes seconds to import, and would count as a command's time


ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")
"""What acts on a terminal instead of being shown."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def pretrieve(*arguments: str, seconds: float = 20) -> Ended:
    """Run a command to its end; the test fails if it takes more than so many seconds of CPU."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["pretrieve", *arguments])
        try:
            with time_limit(seconds, arguments), pytest.raises(SystemExit) as ended:
                cli.main()
        except TooSlow as error:
            raise AssertionError(str(error)) from None
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def ended_by(body: Callable[[], object], *, seconds: float = 20) -> Ended:
    """How the command line ends where a command does what `body` does: with its line and exit code for each error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "app", lambda standalone_mode: body() and None)
        return pretrieve(seconds=seconds)


def refused(*arguments: str, seconds: float = 20) -> str:
    """The one line of a command that ends with exit code 2."""
    ended = pretrieve(*arguments, seconds=seconds)
    assert ended.code == 2, f"exit code {ended.code}: {ended.err}"
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("pretrieve: "), ended.err
    assert not ACTS.search(lines[0]), ended.err
    return lines[0]


class TooSlow(BaseException):
    """A command took longer than it may; no handler of the command line's catches it."""


@contextlib.contextmanager
def time_limit(seconds: float, what: object) -> Iterator[None]:
    """Raise TooSlow in this block after so many seconds of CPU: on a busy machine time passes without work."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"{what}: no end after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
