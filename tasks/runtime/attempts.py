"""Measure the cost of an artifact over all attempts: one that is interrupted leaves its cost in the work folder.

    WORK/scratch/attempts/<number>.json    seconds, CPU seconds and joules of an attempt

The file is written every 30 s while a stage is built, so at most this much of a killed attempt is not counted.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from storage.errors import UserError
from storage.files import write_atomically
from storage.store.publishing import SCRATCH
from tasks.runtime.energy import Meter
from tasks.runtime.environment import cpu_seconds

ATTEMPTS = Path(SCRATCH) / "attempts"
SECONDS_BETWEEN_NOTES = 30.0


@dataclass(frozen=True)
class Cost:
    """Seconds, CPU seconds and joules by part."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    energy_joules: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        parts = [*self.energy_joules, *(part for part in other.energy_joules if part not in self.energy_joules)]
        joules = {part: self.energy_joules.get(part, 0.0) + other.energy_joules.get(part, 0.0) for part in parts}
        return Cost(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, joules)


class Attempt:
    """An attempt to build an artifact in a work folder; its cost is noted while its block runs, and at the end."""

    def __init__(self, work: Path) -> None:
        self._earlier = _read(work / ATTEMPTS)
        self._file = work / ATTEMPTS / f"{time.time_ns()}.json"
        self._meter, self._started, self._cpu = Meter(), time.monotonic(), cpu_seconds()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._note_repeatedly, name="attempt", daemon=True)

    def __enter__(self) -> Attempt:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
        self._meter.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._meter.__exit__(kind, error, trace)
        if error is not None:
            self._note()

    @property
    def number(self) -> int:
        """The number of this attempt, from 1."""
        return len(self._earlier) + 1

    def total(self) -> Cost:
        """Return the cost of all attempts until now."""
        return sum(self._earlier, self._own())

    def _own(self) -> Cost:
        return Cost(time.monotonic() - self._started, cpu_seconds() - self._cpu, dict(self._meter.joules))

    def _note_repeatedly(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_NOTES):
            self._note()

    def _note(self) -> None:
        """Write the cost until now. A disk that is full must not end the stage, or hide why it ended.

        Where the lease was lost, another process may have published the work folder, which must not exist again.
        """
        with contextlib.suppress(OSError, UserError):
            if self._file.parent.exists():
                write_atomically(self._file, json.dumps(vars(self._own())))


def _read(folder: Path) -> list[Cost]:
    """Return the costs of earlier attempts; a file that is damaged counts as an attempt without cost."""
    return [_cost(path) for path in sorted(folder.glob("*.json"))]


def _cost(path: Path) -> Cost:
    try:
        content = json.loads(path.read_bytes())
        joules = {str(part): float(value) for part, value in content["energy_joules"].items()}
        return Cost(float(content["seconds"]), float(content["cpu_seconds"]), joules)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Cost()
