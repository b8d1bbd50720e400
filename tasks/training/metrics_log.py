"""The log of a training: JSON lines, and TensorBoard's files next to them."""

from __future__ import annotations

import json
import math
from pathlib import Path

from storage.files import write_atomically


class MetricsLogger:
    """Logs of the process that writes: `metrics.jsonl` and TensorBoard's event files."""

    def __init__(self, folder: Path, first: int) -> None:
        """Resume the log of an earlier attempt whose checkpoint is of step `first`; 0 starts a new log."""
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        write_atomically(path, "".join(_lines_until(path, first)) if first else "")
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Log the values of a step, without those that are infinite or NaN, which JSON does not have."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in finite.items():
            self._board.add_scalar(name, value, step)

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._board.close()


class NullLogger:
    """The log of the other processes, which do not write."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Do nothing."""

    def __enter__(self) -> NullLogger:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def seconds_in_steps(log: str, batch: int) -> float:
    """Return how long a training's steps of `batch` rows took; a line of its log has the rate since the line before."""
    lines = [line for line in map(json.loads, log.splitlines()) if line.get("rows_per_second")]
    last = [0, *(line["step"] for line in lines)]
    seconds = ((line["step"] - last[number]) * batch / line["rows_per_second"] for number, line in enumerate(lines))
    return float(sum(seconds))


def _lines_until(path: Path, last: int) -> list[str]:
    """Return the lines of a log up to a step. Later steps are repeated; lines that a crash cut off are dropped."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace", encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("}\n") and (step := _step(line)) is not None and 0 <= step <= last]


def _step(line: str) -> int | None:
    """Return the step of a line of the log; None for a damaged line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return None
