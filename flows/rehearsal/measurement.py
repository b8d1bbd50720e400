"""Measure the stages of a rehearsal at two sizes, and extrapolate them to the size of the real collection."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.runtime.formatting import in_units

MOST_HOURS = 48.0  # of one stage, on one process
LEAST_SECONDS = 1.0  # of a stage, below which its growth is noise
LEAST_GROWTH = 64 * 2**20  # bytes of memory between the sizes, below which the growth is noise
RESET_PEAK = "5"  # what Linux takes to reset the peak of a process's resident memory


@dataclass(frozen=True)
class Measurement:
    """The time, memory and disk of a stage with a number of passages."""

    stage: str
    round: str
    on_gpu: bool
    """Whether a model does the work, here a tiny one: its time says nothing about the real model's."""
    rows: int | None
    seconds: float
    memory: int
    """The bytes by which the process's resident memory rose at its peak."""
    disk: int
    """Bytes of the artifact."""


@dataclass(frozen=True)
class Extrapolation:
    """The estimated time, memory and disk of a stage with the passages of the real collection."""

    measured: Measurement
    growth: float
    """The exponent of time: 1 is linear in the passages, 2 quadratic."""
    hours: float | None
    """Hours of one process; None where a real model does the work."""
    memory: float
    disk: float

    def problems(self, limits: Mapping[str, float]) -> list[str]:
        """Return what would break or take too long, given the bytes of `memory` and `disk` of this machine."""
        name = f"{self.measured.stage} {self.measured.round}".strip()
        problems = [
            _exceeds(name, kind, value, limits[kind])
            for kind, value in (("memory", self.memory), ("disk", self.disk)) if value > limits[kind]
        ]  # fmt: skip
        if self.hours is not None and self.hours > MOST_HOURS:
            problems.append(f"{name}: about {self.hours:,.0f} hours on one process, growing as N^{self.growth:.1f}")
        return problems


def problems_of(stages: Sequence[Extrapolation], limits: Mapping[str, float]) -> list[str]:
    """Return the problems of each stage, and that of all together: a store keeps the artifacts of every stage."""
    problems = [problem for stage in stages for problem in stage.problems(limits)]
    if (disk := sum(stage.disk for stage in stages)) > limits["disk"]:
        problems.append(_exceeds("all stages", "disk", disk, limits["disk"]))
    return problems


def _exceeds(name: str, kind: str, value: float, limit: float) -> str:
    return f"{name}: about {in_units(value)} of {kind}, this machine has {in_units(limit)}"


def extrapolate(small: Measurement, large: Measurement, sizes: tuple[int, int], full: int) -> Extrapolation:
    """Extrapolate a stage from two sizes to the full number of passages.

    Time grows by the power law through both, with an exponent from 0 to 2, or 1 for a stage that is too short to tell.
    Disk grows linearly, and so does memory, unless the sizes differ so little that it is noise.
    """
    factor, times = sizes[1] / sizes[0], full / sizes[1]
    growth = 1.0
    if large.seconds >= LEAST_SECONDS:
        growth = math.log(large.seconds / max(small.seconds, 1e-3)) / math.log(factor)
        growth = min(2.0, max(0.0, growth))
    slope = (full - sizes[1]) / (sizes[1] - sizes[0])
    risen = large.memory - small.memory
    # A collection may be smaller than the synthetic ones: the line through both may then reach below 0.
    memory = max(0, large.memory + (risen * slope if risen >= LEAST_GROWTH else 0))
    disk = max(0, large.disk + max(0, large.disk - small.disk) * slope)
    hours = None if large.on_gpu else large.seconds * times**growth / 3600
    return Extrapolation(large, growth, hours, memory, disk)


def by_stage_and_round(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return one measurement for the calls of a stage in a round: sums, and the greatest memory."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.stage, measurement.round), []).append(measurement)
    return [
        Measurement(
            stage, round_, any(call.on_gpu for call in calls),
            None if any(call.rows is None for call in calls) else sum(call.rows or 0 for call in calls),
            sum(call.seconds for call in calls), max(call.memory for call in calls), sum(call.disk for call in calls),
        )
        for (stage, round_), calls in groups.items()
    ]  # fmt: skip


def reset_peak_memory() -> int:
    """Let the peak of this process's memory start at what it has now; return that in bytes, 0 where it is unknown.

    Freed memory is given back first: a stage would use what an earlier one left, and seem to need none.
    """
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # of glibc
        libc.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="utf-8")
    except OSError:
        return 0
    return peak_memory()


def peak_memory() -> int:
    """Return the peak resident memory of this process since the last reset, in bytes; 0 where it is unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
