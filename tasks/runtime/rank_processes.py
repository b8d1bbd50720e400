"""This host's processes of a job of several (`tasks.runtime.ranks`): started together, ended together.

They are started here and not by torchrun, whose launcher listens on every interface, without a password, and unpickles
what it receives there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from storage.files import write_atomically
from storage.store.store import Store
from tasks.runtime.heartbeat import SECONDS_BETWEEN_BEATS
from tasks.runtime.signals import DeferredSigterm
from tasks.session import execution

SECONDS_TO_SAVE = 120  # in which processes that receive SIGTERM must have ended their step and saved a checkpoint
SECONDS_BETWEEN_LOOKS = 0.1
PARENT = "PRETRIEVE_PARENT"  # the process that a process must not outlive
RENDEZVOUS_FILE = "PRETRIEVE_MEETING"  # the file in which the processes of one host meet
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
KILLED = "killed"  # a file in the job's folder: a process was ended from outside
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Processes:
    """This host's processes of a job. They end when this process does, even by `kill -9`."""

    def __init__(self, folder: Path, store: Store, slot: int, beat: Callable[[], None] | None = None) -> None:
        """Start them, for this host's slot among the hosts; `beat` is called every few seconds while they end."""
        self._folder, self._all, self._ended = folder, list[subprocess.Popen[bytes]](), False
        self._beat = beat
        # Local, since a shared file system may have no locks; and closed to other users.
        self._rendezvous = tempfile.TemporaryDirectory(prefix="pretrieve-")
        command = [sys.executable, "-m", "tasks.runtime.ranks", str(folder), str(store.root)]
        with DeferredSigterm():  # SIGTERM between two of them would leave the first without `end`
            try:
                for number in range(execution().processes):
                    env = _environment(slot, number, Path(self._rendezvous.name) / "processes")
                    # Ctrl-C and SIGTERM are for this process only, which then ends the others.
                    self._all.append(subprocess.Popen(command, env=env, start_new_session=True))
            except BaseException:
                self.kill()
                raise

    def wait(self, seconds: float) -> bool | None:
        """Return whether all have completed, or None if some run after `seconds`. If one fails, the others end."""
        deadline = time.monotonic() + seconds
        while True:
            codes = [process.poll() for process in self._all]
            if any(codes):
                self.end()
                return False
            if None not in codes:
                return True
            if time.monotonic() > deadline:
                return None
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def end(self) -> None:
        """Have those end that still run; processes that train save a checkpoint first."""
        if self._ended:
            return
        with DeferredSigterm():  # a second SIGTERM must not break this off
            try:
                codes = [process.poll() for process in self._all]  # once: one that is killed now is in one list
                running = [process for process, code in zip(self._all, codes, strict=True) if code is None]
                for process in running:
                    process.terminate()
                self._wait_until_ended(running)
                killed = any(code and code < 0 for code in codes)
                killed |= any((process.poll() or 0) < 0 and process.poll() != -signal.SIGTERM for process in running)
                if killed and self._folder.is_dir():  # else the job is over
                    write_atomically(self._folder / KILLED, "")
            finally:
                self.kill()

    def _wait_until_ended(self, running: Sequence[subprocess.Popen[bytes]]) -> None:
        """Wait until they have ended, but not longer than they may take; the other hosts hear that this one lives."""
        deadline, next_beat = time.monotonic() + SECONDS_TO_SAVE, 0.0
        while time.monotonic() < deadline and any(process.poll() is None for process in running):
            if self._beat and time.monotonic() >= next_beat:
                with contextlib.suppress(FileNotFoundError):  # the job is over
                    self._beat()
                next_beat = time.monotonic() + SECONDS_BETWEEN_BEATS
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def kill(self) -> None:
        """End those that still run at once."""
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()
        self._rendezvous.cleanup()
        self._ended = True


def _environment(slot: int, number: int, rendezvous: Path) -> dict[str, str]:
    """Return the environment of a process of this host: ours, its rank, and the interface that it listens on.

    Each process has as many threads as `execution.threads` says. Modules are imported from where we import them, and
    from nowhere else.
    """
    wanted = execution()
    env = os.environ | {
        "OMP_NUM_THREADS": str(wanted.threads),
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "PYTHONSAFEPATH": "1",  # else `-m` looks in the working folder first
        PARENT: str(os.getpid()),
        RENDEZVOUS_FILE: str(rendezvous),
        "RANK": str(slot * wanted.processes + number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(wanted.hosts * wanted.processes),
    }
    if wanted.hosts == 1:  # several hosts need an interface that the others reach
        env |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    return env


def die_with_parent() -> None:
    """End when the process that started this one ends, even by `kill -9`. Linux only: elsewhere nothing is done."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT]):  # it ended before we could ask
            os._exit(1)
