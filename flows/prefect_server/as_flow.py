"""Run a function as a Prefect flow of this process, on an embedded server or on the one that the user has named."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Callable
from typing import TypeVar

from flows.interrupt import leave, limit_exit
from flows.prefect_server.embedded_server import start
from flows.prefect_server.named_server import named_server, profiles_file
from flows.prefect_server.watch import ServerWatch, require_answer
from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime.prefect_task import EMBEDDED
from tasks.runtime.signals import Terminated
from tasks.session import Session

T = TypeVar("T")

DESCRIPTORS = 64  # with 16 a run fails, with 64 it does not


def as_flow(flow_name: str, title: str, current: Session, body: Callable[[], T]) -> T:
    """Call `body` as a Prefect flow of this process, with its stages as tasks; return its result.

    `title` is the run's name. Raises `UserError` where the server does not answer from the start, and `ServerLost`
    where it stops answering.
    """
    require_descriptors()
    prepare_prefect(current.store)
    announce_server(current.print_line)
    from prefect import flow, tags
    from prefect.exceptions import TerminationSignal

    from tasks.runtime.prefect_task import TAG

    limit_exit()
    embedded, watch = watched_server(current.print_line)
    results: list[T] = []

    def body_as_flow() -> None:
        try:
            results.append(body())
        except (KeyboardInterrupt, TerminationSignal, Terminated) as interrupted:
            if embedded:  # the server ends with this process: no one would read the run's state
                leave(signal.SIGINT if isinstance(interrupted, KeyboardInterrupt) else signal.SIGTERM)
            raise
        except Exception as error:
            watch.failed(error)
            raise

    try:
        with watch, tags(TAG):
            flow(name=flow_name, flow_run_name=lambda: title, persist_result=False)(body_as_flow)()
    except Exception as error:
        raise watch.cause(error) from error
    return results[0]


def require_descriptors() -> None:
    """Raise `UserError` where the limit of open files is so low that Prefect's threads would fail."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < DESCRIPTORS:
        raise UserError(f"{allowed} files may be open (ulimit -n), and a run needs {DESCRIPTORS}; raise the limit")


def announce_server(print_line: Callable[[str], None]) -> None:
    """Print that an embedded server starts, unless this process has one or the user has named a server."""
    if EMBEDDED not in os.environ and not named_server():
        print_line("starting a Prefect server for this run, which takes some seconds, on a busy machine a minute …")


def watched_server(print_line: Callable[[str], None]) -> tuple[bool, ServerWatch]:
    """Start an embedded server unless the user has named one; return whether, and the thread that watches it.

    Raises `UserError` where the named server does not answer or refuses the credentials.
    """
    from prefect.settings import get_current_settings

    if named_server():
        return False, ServerWatch(f"the Prefect server at {require_answer()}", print_line)
    start()
    return True, ServerWatch("Prefect's embedded server", print_line, database=get_current_settings().home)


def prepare_prefect(store: Store) -> None:
    """Set what Prefect reads from the environment when it is imported; what the user has set stays.

    Telemetry is off. Results are kept in the store, and so is the embedded server's database where no server is named.
    Prefect's own log lines go to the server only, not to the terminal.
    """
    store.mark()
    folder = store.root / ".prefect"
    (folder / "results").mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOCAL_STORAGE_PATH": str(folder / "results"),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # our automations count a run as dead after 90 seconds of silence
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # a busy machine needs more than the default of 20
    }
    for setting, value in defaults.items():
        os.environ.setdefault(setting, value)
    if not named_server():
        os.environ.setdefault("PREFECT_PROFILES_PATH", str(profiles_file()))  # the user's other settings stay
        os.environ.setdefault("PREFECT_HOME", str(folder))
    logging.raiseExceptions = False  # a server that is gone cannot take log lines: no traceback on the terminal for it
