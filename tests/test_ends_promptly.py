"""A command that gets a signal, or whose Prefect server is lost, ends in one line within seconds, and resumes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.services.servers import PATIENCE, wait_for

pytestmark = pytest.mark.slow
SECONDS = 10 * PATIENCE  # 10 on a quiet machine
RESUMES = "the same command goes on where this run stopped"


class Attempt:
    """A run of tests/attempt.py in a folder."""

    def __init__(self, folder: Path, **more: str) -> None:
        self.folder = folder
        env = warm.environment(folder, PRETRIEVE_TEST=str(folder), **more)
        files = {"stdout": folder / "stdout", "stderr": folder / "stderr"}
        for file in (*files.values(), folder / "began"):
            file.unlink(missing_ok=True)
        self.command = warm.start("attempt", str(folder), cwd=folder, env=env, module="tests.attempt", **files)

    def until_it_builds(self) -> None:
        """Wait until the first stage is being built."""
        wait_for(lambda: (self.folder / "began").exists() or self.command.poll() is not None, 2, "a stage begins", 0.05)
        assert self.command.poll() is None, self.stderr()

    def go(self) -> None:
        """Let the stage end."""
        (self.folder / "go").touch()

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def ended(self) -> int:
        """Its exit code, in time; nothing that it started is left."""
        code = self.command.wait(SECONDS)
        wait_for(lambda: not self.processes(), 0.1, "no process is left", 0.05)
        return code

    def processes(self) -> list[psutil.Process]:
        """What it has started, and itself."""
        return [each for each in psutil.process_iter() if environment(each).get("PRETRIEVE_TEST") == str(self.folder)]

    def server(self) -> psutil.Process:
        """Its embedded server."""
        [found] = [each for each in self.processes() if "flows.embedded" in each.cmdline()]
        return found

    def built(self, stage: str) -> bool:
        return bool(list((self.folder / "store" / stage).glob("*/manifest.json")))


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[..., Attempt]]:
    """attempt(**environment) starts a run that ends with the test."""
    started: list[Attempt] = []

    def start(**more: str) -> Attempt:
        started.append(Attempt(tmp_path, **more))
        return started[-1]

    yield start
    for one in started:
        one.command.end()


def test_a_signal_to_the_group_ends_a_run_with_its_embedded_server_at_once(attempt: Callable[..., Attempt]) -> None:
    run = attempt()
    run.until_it_builds()

    os.killpg(run.command.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.killpg(run.command.pid, signal.SIGTERM)

    assert run.ended() == -signal.SIGTERM
    assert run.stderr().splitlines() == [f"pretrieve: ended by SIGTERM; {RESUMES}"]
    assert not run.built("wait")


def test_a_run_whose_embedded_server_is_lost_finishes_its_stage_and_says_so(attempt: Callable[..., Attempt]) -> None:
    run = attempt()
    run.until_it_builds()
    run.server().kill()
    wait_for(lambda: "this stage is finished first" in (run.folder / "stdout").read_text(), 0.5, "the loss is noticed")
    assert run.command.poll() is None

    run.go()

    assert run.ended() == 1
    [line] = run.stderr().splitlines()
    assert line.startswith("pretrieve: Prefect's embedded server does not answer any more")
    assert line.endswith(RESUMES)
    assert run.built("wait")
    assert not run.built("follow")

    again = attempt()

    assert again.command.wait(60 * PATIENCE) == 0, again.stderr()
    assert run.built("follow")
