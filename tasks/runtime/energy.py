"""Energy that the machine uses during a block, where it is measured: processors by RAPL, NVIDIA's GPUs by NVML.

Both count the work of all processes. RAPL's counters are Linux files in microjoules that begin again at 0 after some
minutes or hours, so they are read repeatedly while the meter runs.

CodeCarbon reads the same counters, but estimates power from a list of processors and a constant for memory where it may
not read them, and looks up the country's carbon intensity. Here nothing is assumed: what is not measured is missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

POWERCAP = Path("/sys/class/powercap")
ZONES = {"package": "processors", "dram": "memory"}  # of RAPL, by how their names begin; others are parts of these
SECONDS_BETWEEN_READINGS = 30.0  # the usual counter of 262 kJ begins again after 15 minutes of 300 W


@dataclass(frozen=True)
class Counter:
    """A counter of joules that begins again at 0 after `range` of them."""

    part: str
    read: Callable[[], float]
    range: float


class Meter:
    """Counts in a thread of its own while its block runs; `joules` are by part, {} where the machine has no counter."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self.counters = [*_processors(powercap), *_gpus()]
        self.joules: dict[str, float] = {counter.part: 0.0 for counter in self.counters}
        self._last = [counter.read() for counter in self.counters]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)

    def __enter__(self) -> Meter:
        if self.counters:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self.counters:
            self._thread.join()
            self.look()

    def look(self) -> None:
        """Add what was counted since the last reading; a counter that cannot be read now is read at the next."""
        for number, counter in enumerate(self.counters):
            with contextlib.suppress(OSError, ValueError):  # a meter must not end the stage that it measures
                now = counter.read()
                change = now - self._last[number]
                self.joules[counter.part] += change if change >= 0 else change + counter.range
                self._last[number] = now

    def _watch(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_READINGS):
            self.look()


def _processors(powercap: Path) -> Iterator[Counter]:
    """Yield the RAPL zones that this user may read; since 2020 most systems let only root read them."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError):
            name = (zone / "name").read_text(encoding="utf-8").partition("-")[0].strip()
            if name in ZONES:
                (zone / "energy_uj").read_text(encoding="utf-8")
                range_joules = _joules(zone / "max_energy_range_uj")
                yield Counter(ZONES[name], partial(_joules, zone / "energy_uj"), range_joules)


def _joules(file: Path) -> float:
    return int(file.read_text(encoding="utf-8")) / 1e6


def _gpus() -> Iterator[Counter]:
    """Yield the NVIDIA GPUs, from Volta on, where the package nvidia-ml-py is installed."""
    try:
        import pynvml
    except ImportError:
        return
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
            yield Counter("GPUs", partial(_of_gpu, gpu), 2**64 / 1e3)


def _of_gpu(gpu: Any) -> float:
    import pynvml

    try:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from error
