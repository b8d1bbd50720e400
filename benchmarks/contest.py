"""Contenders that do the same work interleaved in one process, and the speedup over each baseline.

On a CPU, CPU seconds of all threads and finished children are measured, since they depend less on other load than the
clock; on a GPU, the clock between two synchronisations. The contenders are interleaved, so that other load affects all
alike. Each turn gives a ratio for each baseline; the median is reported with the lowest and the highest.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

OURS = "pretrieve"
REPEATS = 5


@dataclass(frozen=True)
class Case:
    """One piece of work and who does it."""

    name: str
    """The work of the case, with its size."""
    contenders: Mapping[str, Callable[[], Any]]
    """Each does the work once and returns what came out; `OURS` is one of them. A first turn is not counted."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """How many times faster than a peer ours is to be."""
    compared: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda returned: {}
    """The facts reported about the last turn's results, by contender; raises `AssertionError` where they differ."""
    repeats: int = REPEATS
    units: Mapping[str, float | Callable[[Any], float]] = field(default_factory=dict)
    """The amounts of work in a turn, or of its results: {"tokens": 83_000}. They are shown as rates per second."""
    per: str | None = None
    """The unit of which the time is compared, where contenders' results have different amounts; None for turns."""


def held(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Let a case's contenders take turns. Returns medians of seconds, speedups, rates, and what was compared."""
    returned = {name: work() for name, work in case.contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in case.contenders}
    compared: dict[str, list[float]] = {name: [] for name in case.contenders}
    for turn in range(case.repeats):
        names = list(case.contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            returned.pop(name)
            gc.collect()
            started = clock(device)
            returned[name] = case.contenders[name]()
            seconds[name].append(clock(device) - started)
            amount = 1.0 if case.per is None else _amount(case.units[case.per], returned[name])
            compared[name].append(seconds[name][-1] / amount)
    comparison = case.compared(returned)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "turns": case.repeats,
        "seconds": {name: _rounded(median) for name, median in medians.items()},
        "times_faster": {
            name: _ratios(times, compared[OURS], case.targets.get(name))
            for name, times in compared.items()
            if name != OURS
        },
        "per": case.per,
        "rates": {
            unit: {name: _rounded(_amount(number, returned[name]) / median) for name, median in medians.items()}
            for unit, number in case.units.items()
        },
        "found": dict(comparison),
    }  # fmt: skip


def _amount(number: float | Callable[[Any], float], returned: object) -> float:
    """Return an amount of work, which may depend on the results."""
    return number(returned) if callable(number) else number


def clock(device: str) -> float:
    """Return seconds: CPU time on a CPU, the clock on a GPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _ratios(theirs: list[float], ours: list[float], target: float | None) -> dict[str, float | None]:
    """Return the ratio of a baseline's times to ours for each turn, as median, lowest and highest."""
    ratios = [peer / own for peer, own in zip(theirs, ours, strict=True)]
    summary = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return {**{name: _rounded(ratio) for name, ratio in summary.items()}, "target": target}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
