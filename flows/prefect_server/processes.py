"""Background processes that outlive the command that started them, with one file for each.

    FOLDER/NAME.json    process number, start moment, and address
    LOGS/NAME.log       output

A process is identified by its number and its start moment, so that a number that the system has reused is never taken
for ours. On Linux that moment is counted from the boot, so that a change of the clock does not matter.

Why no supervisor library: supervisord and circus have a server of their own to be configured, protected by a password
and upgraded; honcho and similar tools stay in the foreground. systemd is not on every machine and in no container.
psutil does the work that is hard to get right: finding children, waiting and killing. What has died is started again by
flows/prefect_server/supervisor.py.
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

SECONDS_TO_END = 40.0  # a worker ends the processes of its runs within 30


@dataclass(frozen=True)
class Background:
    """A background process."""

    name: str
    pid: int
    began: str
    """Its start moment, as `start_moment` returns it."""
    url: str = ""
    """Its address; empty for a worker."""
    command: Sequence[str] = ()
    """The command that started it."""
    log_offset: int = 0
    """The byte of its log at which its own output begins; before are earlier processes of this name."""

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.url.rpartition(":")[2])

    def process(self) -> Any:
        """Return the psutil.Process while it runs, else None."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if start_moment(self.pid) == self.began and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def start_moment(pid: int) -> str:
    """Return a process's start moment, as a text that differs for every process of this number.

    Raises psutil.NoSuchProcess where there is none.
    """
    import psutil

    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = fields[19]  # starttime, the 22nd field
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()} {ticks}"
    except OSError:  # not Linux, or no such process
        return str(psutil.Process(pid).create_time())


def start(
    folder: Path, log: Path, name: str, command: Sequence[str], env: Mapping[str, str], url: str = ""
) -> Background:
    """Start a command in a session of its own, and record it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        offset = file.tell()
        process = subprocess.Popen(
            command, cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    service = Background(name, process.pid, start_moment(process.pid), url, command, offset)
    try:
        write_atomically(folder / f"{name}.json", json.dumps(asdict(service)))
    except OSError:
        process.kill()  # no command would know of it
        raise
    return service


def recorded(folder: Path) -> dict[str, Background]:
    """Return the processes that were started, by name; they may have ended."""
    services = {}
    for file in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError, TypeError, FileNotFoundError):
            service = Background(**json.loads(file.read_text(encoding="utf-8")))
            services[service.name] = service
    return services


def running(folder: Path) -> dict[str, Background]:
    """Return the processes that were started and still run, by name."""
    return {name: service for name, service in recorded(folder).items() if service.process()}


def stop(folder: Path, *services: Background) -> None:
    """Send SIGTERM to all of them, and after a while SIGKILL to them and their children that still run."""
    processes = [process for service in services if (process := service.process())]
    end(processes, [*processes, *(child for process in processes for child in _children(process))])
    forget(folder, [service.name for service in services])


def forget(folder: Path, names: Iterable[str]) -> None:
    """Remove the records of processes, so that nothing starts them again."""
    for name in names:
        (folder / f"{name}.json").unlink(missing_ok=True)


def _children(process: Any) -> list[Any]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        children: list[Any] = process.children(recursive=True)
        return children
    return []


def end(parents: Iterable[Any], processes: Sequence[Any]) -> None:
    """Send SIGTERM to `parents`, wait, and kill those of `processes` that still run."""
    import psutil

    for process in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=SECONDS_TO_END)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=SECONDS_TO_END)


def with_environment(**wanted: str) -> list[Any]:
    """Return this user's other processes that were started with these environment variables, with their children."""
    import psutil

    matches = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and wanted.items() <= process.environ().items():
                matches.append(process)
    return matches
