"""End a command with one line on standard error and an exit code, and promptly after a signal.

SIGTERM and SIGHUP end a command with that signal (a shell shows 143), Ctrl-C ends it with 130. Both unwind the main
thread first, so that a training saves a checkpoint and child processes end. A thread ends the command where this takes
too long: in Java or C code that Python cannot interrupt, or in the retries of a client whose server is lost. Ending
abruptly is safe, since artifacts are published by one rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from storage.errors import DamagedArtifact, UserError, one_line, quoted, wrong_path
from storage.files import limit_reached
from storage.store import begun_runs
from storage.store.locks import LeaseLost
from tasks.runtime.signals import is_sigterm_deferred, unwind_on_sigterm

INTERRUPTED = 130
SECONDS_TO_UNWIND = 8.0  # from a signal, or from the checkpoint that a training saves after it
_exit_by = list[float]()

RESUMES = "the same command resumes this run"


class ServerLost(Exception):
    """The Prefect server of a run does not answer any more. The message is one line."""


def leave(number: int) -> NoReturn:
    """End the process by a signal, without waiting: complete artifacts are on disk, and the rest is resumed."""
    if threading.current_thread() is threading.main_thread():
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a second signal must not interrupt this
            signal.signal(other, signal.SIG_IGN)
    if sys.stderr.isatty():  # the terminal shows ^C, or a progress bar
        sys.stderr.write("\n")
    resumes = f"; {RESUMES}" if begun_runs.has_begun() else ""
    if number == signal.SIGINT:
        end(f"interrupted{resumes}", INTERRUPTED)
    say(f"ended by {signal.Signals(number).name}{resumes}")
    # Python sets handlers in the main thread only, and that may be in C code for long; NULL is SIG_DFL.
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def end(line: str, code: int) -> NoReturn:
    """End the process with a line and an exit code, without waiting for threads or exit handlers."""
    say(line)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def say(line: str) -> None:
    """Write one line to standard error, if it is still open."""
    with contextlib.suppress(OSError, ValueError):
        print(f"pretrieve: {one_line(line)}", file=sys.stderr, flush=True)


def finish(line: str, code: int) -> NoReturn:
    """Flush, print the line if there is one, and exit."""
    if line:
        say(line)
    if _output_is_closed():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it exits
        code = code or 1
    if _exit_by:
        late = threading.Timer(max(1.0, min(SECONDS_TO_UNWIND, _exit_by[-1] - time.monotonic())), os._exit, (code,))
        late.daemon = True
        late.start()
    sys.exit(code)


def limit_exit(seconds: float = math.inf) -> None:
    """Let `finish` end the process after `seconds`, and at the latest `SECONDS_TO_UNWIND` after its call.

    Exit handlers of Prefect's wait for minutes for a server that is gone.
    """
    _exit_by.append(time.monotonic() + seconds)


def reason(error: BaseException) -> tuple[str, int]:
    """Return the line and the exit code for an error that ends a command: 2 where the user can fix it, else 1."""
    if isinstance(error, UserError):
        return str(error), 2
    if isinstance(error, LeaseLost | ServerLost | DamagedArtifact):
        return str(error), 1
    if getattr(error, "exit_code", None) == 2 and hasattr(error, "format_message"):  # a usage error
        return _usage(error.format_message(), error.__cause__), 2
    if isinstance(error, BrokenPipeError) and _output_is_closed():
        return "", 1
    if line := wrong_path(error):
        return line, 2
    if limit := limit_reached(error):
        return f"{getattr(error, 'filename', None) or 'this command'}: {limit}", 2
    return f"{type(error).__name__}: {error} (PRETRIEVE_TRACEBACK=1 shows where)", 1


def _usage(message: str, cause: BaseException | None) -> str:
    """Return the message of a usage error with the value that was found; Typer has pydantic's words for a value."""
    if cause is None:
        return message
    from pydantic import ValidationError  # not at the top: it would take an eighth of the time of `--help`

    if not isinstance(cause, ValidationError):
        return message
    found = quoted(cause.errors()[0]["input"])
    message = message.replace("Value error, ", "")
    return message if found in message else f"{message}; found {found}"


def _output_is_closed() -> bool:
    """Return whether the reader of our output has closed it, as `head` does."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


@contextlib.contextmanager
def ending_promptly() -> Iterator[None]:
    """Run a block that a signal ends: the main thread unwinds, and the process ends soon in any case.

    Signals that are ignored, as by `nohup`, stay ignored.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # The kernel's signal is written here at once, also while the main thread is in C code.
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_after_signal, args=(reading,), daemon=True, name="signals")
    thread.start()
    hangup = signal.getsignal(signal.SIGHUP)
    if hangup == signal.SIG_DFL:
        # The handler of SIGTERM at that time, such as a training's or Prefect's, then handles SIGHUP, too.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with unwind_on_sigterm(lambda: leave(signal.SIGTERM)):
            yield
    finally:
        signal.signal(signal.SIGHUP, hangup)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)


def _end_after_signal(reading: int) -> None:
    """Wait for a signal, and end the process where the main thread does not end in time."""
    with open(reading, "rb", buffering=0) as signals:  # open to the end: Python writes to it at each signal
        while (number := signals.read(1)) and number[0] not in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            pass
        since, deferred = time.monotonic(), bool(number) and number[0] != signal.SIGINT  # nothing holds Ctrl-C back
        while number and time.monotonic() - since < SECONDS_TO_UNWIND:
            time.sleep(0.1)
            if deferred and is_sigterm_deferred():
                since = time.monotonic()
        if number:
            leave(signal.SIGTERM if deferred else signal.SIGINT)
