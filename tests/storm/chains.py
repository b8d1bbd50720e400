"""A chain of runs on a store of its own, interrupted again and again until it is complete, and compared at the end."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.storm import companions, comparison, leftovers, signals
from tests.storm.outcome import Hit, Outcome
from tests.storm.reference import Reference
from tests.storm.runs import HANGS, Run, end_of, start
from tests.storm.schedule import Chain, Interruption

LEFT = 10.0
"""Seconds within which all that a process has started ends after it."""
ATTEMPTS = 5
"""Runs of a recipe that may end by themselves without success before a chain is given up."""


class GivenUp(Exception):
    """A chain cannot be completed, or the user has interrupted the storm."""


@dataclass
class Weather:
    """What all chains share."""

    inputs: Path
    reference: Mapping[str, Reference]
    """By mode; "" is that of all others."""
    environment: Mapping[str, Mapping[str, str]]
    """By mode, where its services are."""
    deadline: float
    outcome: Outcome = field(default_factory=Outcome)
    stopped: threading.Event = field(default_factory=threading.Event)


class ChainRuns:
    """The runs of one chain."""

    def __init__(self, chain: Chain, folder: Path, weather: Weather) -> None:
        self.chain, self.weather, self.outcome = chain, weather, weather.outcome
        self.folder = shutil.copytree(weather.inputs, folder)
        self.store = self.folder / "artifacts"
        self.reference = weather.reference.get(chain.mode.name) or weather.reference[""]
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.environment = {**weather.environment.get(chain.mode.name, {}), "TMPDIR": str(self.temporary)}
        self.hits: list[Hit] = []
        self.all: list[Run] = []
        self.ended: list[Run] = []
        self.others: list[Run] = []
        self._sweeping = threading.Lock()

    def run(self) -> None:
        """Interrupt the runs of every recipe at once, complete them, and compare what is in the store."""
        done, recipes = threading.Event(), self.chain.mode.recipes
        with ThreadPoolExecutor(len(recipes) + 1) as pool:
            reading = pool.submit(companions.keep_calling, self, done)
            completed = [pool.submit(self._complete, recipe) for recipe in recipes]
            try:
                futures.wait(completed)
            except KeyboardInterrupt:
                self.weather.stopped.set()
                raise
            finally:
                done.set()
        try:
            for future in (*completed, reading):
                future.result()
            comparison.compare(self)
        except GivenUp as reason:
            self.problem(f"given up: {reason}")
        finally:
            for run in self.all:
                leftovers.kill(run.children())

    def start(self, recipe: str) -> Run:
        """Start a run of a recipe."""
        mode = self.chain.mode
        plain = not mode.name.endswith("server") or mode.name.startswith("no ")
        self.all.append(run := start(self.folder, recipe, *mode.arguments, environment=self.environment, plain=plain))
        return run

    def problem(self, what: str) -> None:
        """Note what should not be."""
        self.outcome.problems.append(f"chain {self.chain.number} ({self.chain.mode.name}): {what}")

    def look(self) -> None:
        """Raise where the user has interrupted the storm."""
        if self.weather.stopped.is_set():
            raise GivenUp("interrupted")

    def _complete(self, recipe: str) -> None:
        run, attempts = self.start(recipe), 0
        waiting = self.chain.of(recipe)
        while True:
            if waiting and time.monotonic() < self.weather.deadline:
                aim = waiting.pop(0)
                run = self._interrupted(run, aim)
                continue
            waiting.clear()
            code = self.wait(run)
            if code == 0:
                break
            attempts += 1
            self.problem(f"{recipe}: a run that was not interrupted ended with {code}: {end_of(run)}")
            if attempts == ATTEMPTS:
                raise GivenUp(f"{recipe}: {attempts} runs failed")
            run = self.start(recipe)
        for other in [other for other in self.others if other.recipe == recipe]:
            if (code := self.wait(other)) != 0:
                self.problem(f"{recipe}: a run that was stopped and continued ended with {code}: {end_of(other)}")

    def _interrupted(self, run: Run, aim: Interruption) -> Run:
        """The run that goes on after the interruption: the same, or the next."""
        if not self._reached(run, aim):
            return run if run.poll() == 0 else self._restarted(run)
        short = run.current()
        hit = Hit(aim, self.chain.mode.name, *self.reference.named(short))
        self.hits.append(hit)
        self.outcome.hits.append(hit)
        after = signals.SENT[aim.kind](self, run, hit)
        hit.left = self._left(hit)
        self.sweep()
        return after or self.start(run.recipe)

    def _restarted(self, run: Run) -> Run:
        self.problem(f"{run.recipe}: a run that was not interrupted ended with {run.poll()}: {end_of(run)}")
        self.ended.append(run)
        if sum("was not interrupted" in problem for problem in self.outcome.problems) > 20:
            raise GivenUp("too many runs failed")
        return self.start(run.recipe)

    def _reached(self, run: Run, aim: Interruption) -> bool:
        """Wait for the moment that is aimed at, or any later stage; False where the run has ended before."""
        short, deadline = aim.reference.partition("/")[2][:8], time.monotonic() + HANGS
        while True:
            self.look()
            if run.poll() is not None:
                return False
            states = run.states()
            if states.get(short) == "…":
                break
            if short in states and run.current():
                return True
            if time.monotonic() > deadline:
                self.problem(f"{run.recipe}: not at {aim.reference} within {HANGS:.0f} s: {end_of(run)}")
                return True
            time.sleep(0.01)
        self._await_moment(run, aim, short)
        return run.poll() is None

    def _await_moment(self, run: Run, aim: Interruption, short: str) -> None:
        work = self.store / ".work" / aim.reference.replace("/", "-")
        if aim.moment == "start":
            return
        usual = self.reference.seconds.get(aim.reference, 1.0)
        deadline = time.monotonic() + (aim.fraction * usual if aim.moment == "during" else HANGS)
        while time.monotonic() < deadline and run.states().get(short) == "…" and run.poll() is None:
            for _ in range(50):
                if aim.moment == "publish" and (work / leftovers.MANIFEST).exists():
                    return
                if aim.moment == "write" and _is_writing(work):
                    return
                time.sleep(0.0005)

    def _left(self, hit: Hit) -> str:
        """What the next run finds of the artifact that was being built."""
        if not hit.reference:
            return "nothing begun"
        work = self.store / ".work" / hit.reference.replace("/", "-")
        if (self.store / hit.reference / leftovers.MANIFEST).exists():
            return "published"
        if (work / leftovers.MANIFEST).exists():
            return "complete, not renamed"
        kept = [path for path in work.rglob("*") if path.is_file() and not leftovers.is_temporary(path)]
        return "resumable" if kept else "to rebuild"

    def wait_for_end(self, run: Run, hit: Hit, sent: float, expected: Sequence[int]) -> int | None:
        """The exit code of a run that was to end; others than expected are problems, but for success."""
        hit.code = self.wait(run)
        hit.seconds = (run.ended or time.monotonic()) - sent
        if hit.code not in (*expected, 0):
            self.problem(f"{hit.what}: expected exit code {expected}, found {hit.code}: {end_of(run)}")
        return hit.code

    def wait(self, run: Run) -> int | None:
        """The exit code of a run once it has ended; one that prints nothing for long is killed, which is a problem."""
        deadline, lines = time.monotonic() + HANGS, 0
        while (code := run.poll()) is None:
            self.look()
            if (now := len(run.text)) != lines:
                deadline, lines = time.monotonic() + HANGS, now
            if time.monotonic() > deadline:
                self.problem(f"{run.recipe}: no line and no end for {HANGS:.0f} s: {end_of(run)}")
                run.kill()
                break
            time.sleep(0.01)
        self.ended.append(run)
        return code

    def sweep(self, *, to_the_end: bool = False) -> None:
        """Look for processes of runs that have ended; those that stay are a problem, and are killed."""
        while True:
            with self._sweeping:
                ended, self.ended = self.ended, []
            for run in ended:
                alive = run.children()
                if alive and time.monotonic() - (run.ended or time.monotonic()) < LEFT:
                    self.ended.append(run)
                    continue
                if alive:
                    self.problem(f"{run.recipe}: processes are left {LEFT:.0f} s after its end: {alive}")
                    leftovers.kill(alive)
            if not to_the_end or not self.ended:
                return
            time.sleep(0.2)


def _is_writing(work: Path) -> bool:
    with contextlib.suppress(OSError):  # the folder is renamed
        return any(leftovers.is_temporary(path) for path in work.rglob(".*"))
    return False
