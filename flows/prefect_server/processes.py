"""Processes that go on when the command that started them has ended, known by a file each.

    FOLDER/NAME.json    its process, when that process began, and where it answers
    LOGS/NAME.log       what it says

A process is known by its number and the moment it began, so that a number which the system gave to another process
since is never taken for ours. On Linux that moment is counted from the machine's start, which no change of the clock
moves.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.recipe.shipped import PROJECT
from storage.files import write_atomically

SECONDS_TO_END = 40.0  # a worker ends its runs' processes within 30


@dataclass(frozen=True)
class Background:
    """A process that was started."""

    name: str
    pid: int
    began: str
    """The moment as `beginning` gives it."""
    url: str = ""
    """Where it answers, if it does."""

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.url.rpartition(":")[2])

    def process(self) -> Any:
        """The process of psutil while it runs, else None."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if beginning(self.pid) == self.began and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def beginning(pid: int) -> str:
    """When a process began, as a text that no other process of this number ever has; psutil.NoSuchProcess if none."""
    import psutil

    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # starttime, the 22nd field
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"
    except OSError:  # not Linux, or no such process
        return str(psutil.Process(pid).create_time())


def start(
    folder: Path, log: Path, name: str, command: Sequence[str], env: Mapping[str, str], url: str = ""
) -> Background:
    """Start a command in a session of its own, and note it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    made = Background(name, process.pid, beginning(process.pid), url)
    write_atomically(folder / f"{name}.json", json.dumps(asdict(made)))
    return made


def known(folder: Path) -> dict[str, Background]:
    """What was started there, by name; it may have ended since."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError, TypeError, FileNotFoundError):
            one = Background(**json.loads(file.read_text()))
            found[one.name] = one
    return found


def running(folder: Path) -> dict[str, Background]:
    """What was started there and runs, by name."""
    return {name: one for name, one in known(folder).items() if one.process()}


def stop(folder: Path, *these: Background) -> None:
    """SIGTERM for all of them, and after a while SIGKILL for them and whatever they have started that is left then."""
    processes = [process for one in these if (process := one.process())]
    end(processes, [each for process in processes for each in (process, *_children(process))])
    for one in these:
        (folder / f"{one.name}.json").unlink(missing_ok=True)


def _children(process: Any) -> list[Any]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        found: list[Any] = process.children(recursive=True)
        return found
    return []


def end(asked: Iterable[Any], all_of_them: Sequence[Any]) -> None:
    """Ask processes of psutil to end, wait, and kill whoever of `all_of_them` is left."""
    import psutil

    for process in asked:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(all_of_them, timeout=SECONDS_TO_END)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=SECONDS_TO_END)


def with_environment(**wanted: str) -> list[Any]:
    """Processes of this user, other than this one, that were started with these variables, and what they started."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and wanted.items() <= process.environ().items():
                found.append(process)
    return found
