"""A Prefect server that ends or hangs during a run, and a disk that fills: one line, in time, and the run resumes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.attempts import RESUMES, Attempt
from tests.services.servers import PATIENCE, Service, start_server


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[..., Attempt]]:
    """attempt(folder, **environment) starts a run that ends with the test."""
    started: list[Attempt] = []

    def start(folder: Path = tmp_path, **more: str) -> Attempt:
        started.append(Attempt(folder, logs=tmp_path, **more))  # not on a disk that is full
        return started[-1]

    yield start
    for process in started:
        process.command.end()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Service]:
    """A server that the test may end."""
    started = start_server(tmp_path / "home")
    yield started
    started.stop()


def test_a_server_that_ends_or_hangs_ends_a_run_after_its_stage(
    attempt: Callable[..., Attempt], own_server: Service
) -> None:
    run = attempt(PREFECT_API_URL=own_server.url)
    run.until("")
    os.killpg(own_server.pid, signal.SIGKILL)
    run.until("does not answer; this stage is finished first", in_file="run.stdout")

    run.go()

    code, [line] = run.ended()
    assert code == 1
    assert line.startswith(f"pretrieve: the Prefect server at {own_server.url} does not answer any more")
    assert line.endswith(RESUMES)
    assert run.built() == ["wait"]


def test_a_signal_ends_a_run_whose_server_hangs(attempt: Callable[..., Attempt], own_server: Service) -> None:
    run = attempt(PREFECT_API_URL=own_server.url)
    run.until("")
    hung = [psutil.Process(own_server.pid), *psutil.Process(own_server.pid).children(recursive=True)]
    for process in hung:
        process.suspend()

    os.kill(run.command.pid, signal.SIGTERM)

    try:
        assert run.ended() == (-signal.SIGTERM, [f"pretrieve: ended by SIGTERM; {RESUMES}"])
    finally:
        for process in hung:
            process.resume()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", disk], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_fills_is_named_and_the_run_resumes(attempt: Callable[..., Attempt], small_disk: Path) -> None:
    run = attempt(small_disk)
    run.until("")
    (small_disk / "ready").touch()
    filler = fill(small_disk)

    (small_disk / "ready").rename(small_disk / "go")

    code, [line] = run.ended()
    assert code == 2
    assert line.startswith(f"pretrieve: {small_disk}/store/")
    assert line.endswith("the disk is full; make room and run the same command again")
    assert run.built() == []

    full = attempt(small_disk)

    code, [line] = full.ended(60 * PATIENCE)
    assert code == 2
    assert line.endswith(
        "the disk is full; Prefect's database needs 16 MB there; make room and run the same command again"
    )

    filler.unlink()
    resumed = attempt(small_disk)

    assert resumed.ended(60 * PATIENCE) == (0, [])
    assert run.built() == ["follow", "wait"]


def fill(disk: Path) -> Path:
    """Fill a disk; the file that does."""
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(filler, bytes(4096))
    os.close(filler)
    return disk / "filler"
