"""Long work shows how far it is, how fast it goes and the time left."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from tasks.session import print_line

T = TypeVar("T")

SECONDS_BETWEEN_LINES = 15.0  # where the output is a file or a log, which keeps every line

COLUMNS, ROWS = 80, 24  # of a terminal that states no size

_watcher: contextvars.ContextVar[Callable[[tqdm[None]], None] | None] = contextvars.ContextVar("watcher", default=None)
_drawn: contextvars.ContextVar[bool] = contextvars.ContextVar("drawn", default=True)
_report: contextvars.ContextVar[Callable[[float], None] | None] = contextvars.ContextVar("report", default=None)


def progress(items: Iterable[T], *, what: str, unit: str, total: int | None = None, done: int = 0) -> Iterator[T]:
    """Pass `items` on while a bar on standard error counts them, `done` of the `total` being there already."""
    with bar(what=what, unit=unit, total=total, done=done) as counter:
        for item in items:
            yield item
            counter.update(1)


def bar(*, what: str, unit: str, total: int | None = None, done: int = 0, shown: bool = True) -> tqdm[None]:
    """Return a bar for work that counts by itself: `update(n)`, `set_postfix(loss=...)`; drawn only where `shown`."""
    shown = shown and _drawn.get()
    terminal = sys.stderr.isatty() or in_notebook()
    columns, rows = (COLUMNS, ROWS) if terminal and _states_no_width() else (None, None)
    progress_bar = _Bar(
        desc=f"  {what}", disable=not shown, unit=f" {unit}", total=total, initial=done, leave=False, smoothing=0.1,
        dynamic_ncols=terminal and columns is None, ncols=columns, nrows=rows, ascii=not terminal,
        file=sys.stderr if terminal else Lines(),
        mininterval=0.2 if terminal else SECONDS_BETWEEN_LINES, delay=0 if terminal else SECONDS_BETWEEN_LINES,
    )  # fmt: skip
    if shown and done:
        print_line(f"{what}: resumes after {done:,}{f' of {total:,}' if total else ''} {unit}")
    if shown and (watcher := _watcher.get()):
        watcher(progress_bar)
    return progress_bar


def _states_no_width() -> bool:
    """Return whether the terminal reports 0 columns, as some containers' do: tqdm then draws nothing."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns == 0
    except (OSError, ValueError):  # no file, as in a notebook
        return False


def in_notebook() -> bool:
    """Return whether this runs in a notebook, whose output shows a bar that is drawn over itself."""
    return "ipykernel" in sys.modules and type(sys.stderr).__module__.startswith("ipykernel")


@contextlib.contextmanager
def drawing(drawn: bool) -> Iterator[None]:
    """Draw the bars that begin in this block, or draw none."""
    token = _drawn.set(drawn)
    try:
        yield
    finally:
        _drawn.reset(token)


@contextlib.contextmanager
def watched_by(watcher: Callable[[tqdm[None]], None]) -> Iterator[None]:
    """Also give the bars that begin in this block to `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextlib.contextmanager
def shares_reported_to(report: Callable[[float], None]) -> Iterator[None]:
    """Pass the shares that `report_share` is called with in this block to `report`."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def report_share(share: float) -> None:
    """Report which share of the current work is done, from 0 to 1, if the caller of that work follows it."""
    if report := _report.get():
        report(share)


class _Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar whose slow rate is `1.11 s/step`, where tqdm writes `1.11s/ steps`."""

    @staticmethod
    def format_meter(*args: Any, unit: str, **options: Any) -> str:
        """Return the line of a bar."""
        line: str = tqdm.format_meter(*args, unit=unit, **options)
        return line.replace(f"s/{unit}", f" s/{_singular(unit.strip())}")


def _singular(plural: str) -> str:
    for ending, replacement in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("s", "")):
        if plural.endswith(ending):
            return plural.removesuffix(ending) + replacement
    return plural


class Lines:
    """Standard error where it is no terminal: a line each time, instead of one that is written over."""

    def write(self, text: str) -> None:
        """Write what a bar would draw, if it is more than blanks and the way up to the bar around it."""
        if line := text.replace("\x1b[A", "").strip("\r\n "):
            with contextlib.suppress(BrokenPipeError):  # the work goes on where nobody reads its progress
                sys.stderr.write(f"  {line}\n")
                sys.stderr.flush()

    def flush(self) -> None:
        """Do nothing: lines are flushed as they are written."""
