"""One run of a recipe at a time, what it builds at this moment, and how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from tests import warm
from tests.storm import leftovers

LINE = re.compile(r"^(\w+)(?: \(\w+\))? ([0-9a-f]{8})( …|: built in|: cached|: another run builds it; waiting)")
HANGS = 240.0
"""Seconds without a line, or without an end, after which a run is given up."""


@dataclass
class Run:
    """A process of the command line, and what it has printed."""

    recipe: str
    command: warm.Command
    mark: str
    log: Path
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def text(self) -> str:
        """Its standard error so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def states(self) -> dict[str, str]:
        """By the first letters of keys: "…", "built in", "cached" or "waiting", as last printed."""
        lines = (LINE.match(line) for line in self.text.splitlines())
        return {match[2]: match[3].strip(" :").rpartition("; ")[2] for match in lines if match}

    def current(self) -> str | None:
        """The first letters of the key that it builds or waits for; None between stages."""
        states = self.states()
        last = next(reversed(states), None)
        return last if last and states[last] in ("…", "waiting") else None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self.command.poll()
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
        return code

    def wait(self, seconds: float = HANGS) -> int | None:
        """Its exit code once it has ended; None where it has not ended in time, and then it is killed."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if code is None:
            self.kill()
        return code

    def kill(self) -> None:
        """Kill the process and its group."""
        self.signal(signal.SIGKILL, group=True)

    def signal(self, number: int, *, group: bool) -> None:
        """Send a signal to the process or to its group."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.command.pid, number)

    def children(self) -> dict[int, str]:
        """Its processes that are alive, with their command lines."""
        # The kernel gives its number to another process only once no process of its session is left.
        is_another = self.ended is not None and Path(f"/proc/{self.command.pid}").exists()
        return leftovers.processes(None if is_another else self.command.pid, self.mark)


def start(folder: Path, recipe: str, *arguments: str, environment: Mapping[str, str], plain: bool) -> Run:
    """Start `pretrieve reproduce` of a recipe in a folder, on the store that is in it."""
    return command(folder, recipe, "reproduce", recipe, *arguments, environment=environment, plain=plain)


def command(folder: Path, name: str, *arguments: str, environment: Mapping[str, str], plain: bool) -> Run:
    """Start `pretrieve` with these arguments in a folder."""
    mark = uuid4().hex
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"{time.time_ns()}-{Path(name).stem}.stderr"
    more = {leftovers.MARK: mark, "OMP_NUM_THREADS": "1", "STORM_PLAIN": "1" if plain else "", **environment}
    started = warm.start(
        *arguments, cwd=folder, env=warm.environment(folder, **more), stdout=log.with_suffix(".stdout"), stderr=log,
        module="tests.storm.command",
    )  # fmt: skip
    return Run(name, started, mark, log)


def end_of(run: Run) -> str:
    """The last lines of its standard error, as one."""
    return " | ".join(run.text.splitlines()[-4:])[-700:]
