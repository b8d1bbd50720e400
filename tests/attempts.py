"""Runs of tests/attempt.py that tests disturb, and how they end."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests import warm
from tests.services.servers import PATIENCE, wait_for

SECONDS = 10 * PATIENCE  # 10 on a quiet machine
RESUMES = "the same command resumes this run"


class Attempt:
    """A run in a folder; `more` is for its environment, and `logs` has what it writes, where not the folder."""

    def __init__(self, folder: Path, *options: str, name: str = "run", logs: Path | None = None, **more: str) -> None:
        self.folder, self.mark = folder, f"{folder}/{name}"
        self.out, self.err = (logs or folder) / f"{name}.stdout", (logs or folder) / f"{name}.stderr"
        for file in (self.out, self.err, folder / "began"):
            file.unlink(missing_ok=True)
        self.command = warm.start(
            "attempt", str(folder), *options, cwd=folder, env=warm.environment(folder, ATTEMPT=self.mark, **more),
            module="tests.attempt", stdout=self.out, stderr=self.err,
        )  # fmt: skip

    def until(self, what: str, *, in_file: str = "began") -> None:
        """Wait until it builds its first stage, or has written a text to a file."""
        file = self.folder / in_file

        def there() -> bool:
            return self.command.poll() is not None or (file.exists() and what in file.read_text())

        wait_for(there, 2, what, 0.05)
        assert self.command.poll() is None, self.err.read_text()

    def go(self) -> None:
        """Let the stage end."""
        (self.folder / "go").touch()

    def ended(self, seconds: float = SECONDS) -> tuple[int, list[str]]:
        """Its exit code and its lines on standard error, once it has ended in time and left no process."""
        code = self.command.wait(seconds)
        wait_for(lambda: not self.processes(), 0.25, "no process is left", 0.05)
        return code, self.err.read_text().splitlines()

    def processes(self) -> list[psutil.Process]:
        """Itself and what it has started."""
        return [process for process in psutil.process_iter() if _environment(process).get("ATTEMPT") == self.mark]

    def server(self) -> psutil.Process:
        """Its embedded server."""
        [results] = [
            process for process in self.processes() if "flows.prefect_server.embedded_server" in process.cmdline()
        ]
        return results

    def built(self) -> list[str]:
        """The stages of the folder's store that are complete."""
        return sorted(path.parent.parent.name for path in (self.folder / "store").glob("[a-z]*/*/manifest.json"))


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
