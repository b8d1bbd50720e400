"""Processes that need not import PyTorch: forked from one that has, instead of started."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.runtime import rank_processes
from tests import warm


class ForkedProcess:
    """What `tasks.runtime.rank_processes` uses of `subprocess.Popen`, for `python -m MODULE …`.

    Its parent is the process that forks. Tests of what ends with the parent start real processes.
    """

    def __class_getitem__(cls, item: object) -> type[ForkedProcess]:
        """Return the class, as `Popen[bytes]` does."""
        return cls

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], start_new_session: bool) -> None:
        assert start_new_session
        _, option, module, *arguments = command
        assert option == "-m"
        self._command = warm.start(
            *arguments, cwd=Path.cwd(), env={**env, rank_processes.PARENT: str(warm.parent_pid())},
            stdout=Path(os.devnull), stderr=Path(os.devnull), module=module,
        )  # fmt: skip

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._command.poll()

    def wait(self, timeout: float = 600) -> int:
        """Return its exit code once it has ended."""
        return self._command.wait(timeout)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self._command.pid, number)


def fork_ranks(patch: pytest.MonkeyPatch) -> None:
    """Have the processes of trainings forked."""
    patch.setattr(rank_processes, "subprocess", SimpleNamespace(Popen=ForkedProcess))


def fork_server() -> ForkServerContext:
    """Return a context whose processes are given what those of `spawn` are, but the environment of the first one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faiss", "tasks.pseudo_queries.generate_queries", "tasks.retrieval.encode"])
    return context
