"""Show the progress of a long stage as a progress artifact of its task run in the Prefect UI.

A thread looks at the stage's bars every few seconds and reports them to the server, so that the work does not wait.
What the server does not accept is dropped: it shows the next report, or nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tqdm import tqdm

from tasks.runtime.formatting import duration, short
from tasks.runtime.progress import watched_by

SECONDS_UNTIL_SHOWN = 5.0  # a stage whose bars last less has no such artifact
SECONDS_BETWEEN_LOOKS = 10.0
SECONDS_BETWEEN_LOG_LINES = 60.0
SECONDS_FOR_THE_LAST_WORD = 5.0  # what a stage that has ended waits at most for the server
SECONDS_FOR_AN_ANSWER = 15.0

log = logging.getLogger(__name__)


@contextlib.contextmanager
def show_progress(key: str) -> Iterator[None]:
    """Show the bars that are begun in this block under an artifact's `key` of the task run that this is."""
    from prefect.runtime import flow_run, task_run

    watch = ProgressReporter(key, flow_run.id, task_run.id)
    with watched_by(watch.follow):
        try:
            yield
        except BaseException:
            watch.end(well=False)
            raise
        watch.end(well=True)


@contextlib.contextmanager
def best_effort() -> Iterator[None]:
    """Ignore errors of the server in this block: what is only displayed must not fail the work."""
    import httpx
    from prefect.exceptions import PrefectException

    try:
        yield
    except (httpx.HTTPError, PrefectException, OSError, RuntimeError) as error:
        log.debug("not shown by the server: %s: %s", type(error).__name__, error)


def in_flow_run() -> bool:
    """Return whether a Prefect flow runs in this thread."""
    if "prefect" not in sys.modules:  # a flow that runs has imported it
        return False
    from prefect.context import FlowRunContext

    return FlowRunContext.get() is not None


class ProgressReporter:
    """A stage's newest bar and the thread that looks at it; the thread begins with the first bar."""

    def __init__(self, key: str, flow_run: str | None, task_run: str | None) -> None:
        self.key = key
        self.runs: dict[str, Any] = {"flow_run_id": flow_run, "task_run_id": task_run}
        self.bar: tqdm[None] | None = None
        self.began = time.monotonic()
        self._first_look: tuple[float, float] | None = None
        self._logged = self.began
        self._artifact: UUID | None = None
        self._ended, self._well = threading.Event(), False
        follow = contextvars.copy_context().run  # Prefect's settings are in the context
        self._thread = threading.Thread(target=follow, args=(self._follow,), daemon=True, name=key)

    def follow(self, bar: tqdm[None]) -> None:
        """Follow a bar that has begun."""
        self.bar, self._first_look = bar, None
        if self._thread.ident is None and not self._ended.is_set():  # it has not been started before
            self._thread.start()

    def end(self, *, well: bool) -> None:
        """Show that the stage has ended, before the task run ends, if the server answers soon."""
        self._well = well
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(SECONDS_FOR_THE_LAST_WORD)

    def _follow(self) -> None:
        if self._ended.wait(SECONDS_UNTIL_SHOWN):
            return
        from prefect import get_client

        own = {"timeout": SECONDS_FOR_AN_ANSWER}  # with settings of its own it is not the one that the run closes
        with best_effort(), get_client(httpx_settings=own, sync_client=True) as client:
            while True:
                if self.bar is not None and not self.bar.disable:  # tqdm disables a bar that is closed
                    percent, words = self.progress(self.bar)
                    self._publish(client, percent, words)
                    self._log(words, self.bar)
                if self._ended.wait(SECONDS_BETWEEN_LOOKS):
                    break
            if self._artifact:
                self._publish(client, *self.final_progress())

    def _log(self, words: str, bar: tqdm[None]) -> None:
        """Write a line into the run's log once a minute: the count, the rate, the time left and a training's losses."""
        if time.monotonic() - self._logged < SECONDS_BETWEEN_LOG_LINES:
            return
        self._logged = time.monotonic()
        from prefect import get_run_logger

        with best_effort():
            get_run_logger().info(", ".join([words, *([bar.postfix] if bar.postfix else [])]))

    def _publish(self, client: Any, percent: float, words: str) -> None:
        from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

        with best_effort():
            if self._artifact:
                client.update_artifact(self._artifact, ArtifactUpdate(data=percent, description=words))
            else:
                new = ArtifactCreate(type="progress", key=self.key, data=percent, description=words, **self.runs)
                self._artifact = client.create_artifact(new).id

    def progress(self, bar: tqdm[None]) -> tuple[float, str]:
        """Return the bar's progress, in percent and in words; the rate is measured from the first call.

        What an earlier attempt had finished is counted before that, and would make the rate too high.
        """
        now, n = time.monotonic(), bar.n
        self._first_look = self._first_look or (now, n)
        seconds, passed = now - self._first_look[0], n - self._first_look[1]
        words = [describe_bar(bar)]
        if passed > 0 and seconds > 0:
            words.append(f"{short(passed / seconds)} {bar.unit.strip()}/s")
            if bar.total:
                words.append(f"{duration((bar.total - n) * seconds / passed)} left")
        return (min(100.0, round(100 * n / bar.total, 1)) if bar.total else 0.0), ", ".join(words)

    def final_progress(self) -> tuple[float, str]:
        """Return the progress of a stage that has ended."""
        assert self.bar is not None
        if self._well:
            return 100.0, f"done in {duration(time.monotonic() - self.began)}"
        return self.progress(self.bar)[0], f"stopped, {describe_bar(self.bar)}"


def describe_bar(bar: tqdm[None]) -> str:
    """Return a bar's count in words: `training: 1,200 of 50,000 steps`."""
    total = f" of {bar.total:,}" if bar.total else ""
    return f"{bar.desc.strip(' :')}: {bar.n:,}{total} {bar.unit.strip()}"
