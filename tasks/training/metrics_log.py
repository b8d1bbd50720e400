"""The log of a training: JSON lines, and TensorBoard's files next to them."""

from __future__ import annotations

import json
from pathlib import Path

from storage.files import write_atomically


class MetricsLogger:
    """Logs of the process that writes: `metrics.jsonl` and TensorBoard's event files."""

    def __init__(self, folder: Path, first: int) -> None:
        """Resume the log of an earlier attempt whose checkpoint is of step `first`; 0 starts a new log."""
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        write_atomically(path, "".join(_lines_until(path, first)) if first else "")
        self._file = path.open("a")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=first + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Log the values of a step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
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


def _lines_until(path: Path, last: int) -> list[str]:
    """Return the lines of a log up to a step. Later steps are repeated; lines that a crash cut off are dropped."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    return [line for line in lines if line.endswith("}\n") and (step := _step(line)) is not None and 0 <= step <= last]


def _step(line: str) -> int | None:
    """Return the step of a line of the log; None for a damaged line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return None
