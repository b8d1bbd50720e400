"""Rates that are measured once on a machine and kept in a file, with the load under which they were measured."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import torch

from storage.files import cache_folder, write_atomically
from tasks.machine import load_average, num_cores
from tasks.runtime.environment import describe_build
from tasks.session import execution

HIGH_LOAD = 0.5
"""The load for each usable core above which rates are those of a busy machine: others have half of the cores."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What was measured, and where and when; subclasses have the rates."""

    machine: str
    """The machine, device and libraries on which they were measured."""
    at: str
    """The day of the measurement."""
    load: float
    """The load average of the minute before the measurement."""
    cores: int
    """The cores that the process could use."""

    @property
    def on_busy_machine(self) -> bool:
        """Return whether the load was high, so that an idle machine is faster."""
        return self.load > HIGH_LOAD * self.cores

    def when(self) -> str:
        """Return the day of the measurement, and the load where it was high."""
        load = f" while other processes used the cores (load {self.load:g} on {self.cores} cores)"
        return f"on {self.at}" + load * self.on_busy_machine


R = TypeVar("R", bound=Rates)


def kept_or_measured(
    name: str, kind: type[R], device: torch.device, measure: Callable[[], dict[str, float]], of: str = ""
) -> R:
    """Return this machine's rates `of` something, with the session's threads: kept ones, or measured and kept.

    They are kept in the file `name` of PRETRIEVE_CACHE; another processor, GPU, number of cores or threads, or another
    PyTorch is measured again, and so is a machine that was busy, once its load is lower. Where nothing can be written
    there, each plan measures. `measure` returns the fields of `kind` that are rates.
    """
    load, machine = round(load_average(), 1), _fingerprint(device)
    key, file = f"{machine}; {of}" if of else machine, cache_folder() / name
    known = _read(file, kind)
    kept = known.get(key)
    if kept is not None and not (kept.on_busy_machine and load < kept.load):
        return kept
    today = datetime.now(UTC).date().isoformat()
    rates = kind(**measure(), machine=machine, at=today, load=load, cores=num_cores())
    content = {key: asdict(one) for key, one in (known | {key: rates}).items()}
    with contextlib.suppress(OSError):
        write_atomically(file, json.dumps(content, indent=1) + "\n")
    return rates


def _fingerprint(device: torch.device) -> str:
    built = describe_build(execution())
    name = built["device"] if device.type != "cpu" else built["machine"]["processor"]
    return f"{name}, {num_cores()} cores, {execution().threads} threads, PyTorch {torch.__version__}"


def _read(file: Path, kind: type[R]) -> dict[str, R]:
    """Return the kept rates; none where the file is missing, malformed, or of a version with other fields."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return {key: kind(**rates) for key, rates in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
