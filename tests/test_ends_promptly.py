"""A command that gets a signal, or whose Prefect server is lost, ends in one line within seconds, and resumes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.store.store import Store
from tests import prefect_database, warm
from tests.attempts import RESUMES, Attempt
from tests.ports import free_port
from tests.services.servers import PATIENCE

TERMINATED = (-signal.SIGTERM, [f"pretrieve: ended by SIGTERM; {RESUMES}"])


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[..., Attempt]]:
    """attempt(*options, **environment) starts a run that ends with the test."""
    started: list[Attempt] = []
    prefect_database.provide(tmp_path / ".prefect")

    def start(*options: str, **more: str) -> Attempt:
        started.append(Attempt(tmp_path, *options, **more))
        return started[-1]

    yield start
    for process in started:
        process.command.end()


@pytest.mark.slow
def test_a_signal_to_the_group_ends_a_run_with_its_embedded_server_at_once(attempt: Callable[..., Attempt]) -> None:
    run = attempt()
    run.until("")

    os.killpg(run.command.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.killpg(run.command.pid, signal.SIGTERM)

    assert run.ended() == TERMINATED
    assert run.built() == []


@pytest.mark.slow
def test_a_run_whose_embedded_server_is_lost_finishes_its_stage_and_says_so(attempt: Callable[..., Attempt]) -> None:
    run = attempt()
    run.until("starting a Prefect server for this run", in_file="run.stdout")  # before the first stage
    run.until("")
    run.server().kill()
    run.until("Prefect's embedded server does not answer; this stage is finished first", in_file="run.stdout")

    run.go()

    code, [line] = run.ended()
    assert code == 1
    assert line.startswith("pretrieve: Prefect's embedded server does not answer any more")
    assert line.endswith(RESUMES)
    assert run.built() == ["wait"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_stage_in_one_line(attempt: Callable[..., Attempt], number: int) -> None:
    run = attempt("--plain")
    run.until("")

    for _ in range(5):
        os.kill(run.command.pid, number)
        time.sleep(0.01)

    assert run.ended() == TERMINATED
    run.go()
    assert attempt("--plain").ended(60 * PATIENCE) == (0, [])
    assert run.built() == ["follow", "wait"]


def test_a_signal_ends_one_that_waits_for_another(attempt: Callable[..., Attempt]) -> None:
    builder = attempt("--plain")
    builder.until("")
    waiting = attempt("--plain", name="waiting")
    waiting.until("another run builds it; waiting", in_file="waiting.stdout")

    os.kill(waiting.command.pid, signal.SIGTERM)

    assert waiting.ended() == TERMINATED
    builder.go()
    assert builder.ended() == (0, [])


def test_a_signal_ends_one_that_is_in_c_code(attempt: Callable[..., Attempt], tmp_path: Path) -> None:
    (tmp_path / "stuck").touch()
    run = attempt("--plain")
    run.until("")

    os.kill(run.command.pid, signal.SIGTERM)

    assert run.ended() == TERMINATED


def test_a_server_that_is_not_there_is_named_without_its_password(attempt: Callable[..., Attempt]) -> None:
    port = free_port()

    code, [line] = attempt(PREFECT_API_URL=f"http://user:s3cret@127.0.0.1:{port}/api").ended(60 * PATIENCE)

    assert code == 2
    assert f"no Prefect server answers at http://***@127.0.0.1:{port}/api" in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [(resource.RLIMIT_NOFILE, 16, "ulimit -n"), (resource.RLIMIT_FSIZE, 200, "ulimit -f")],
    ids=["files", "size"],
)
def test_a_limit_of_the_system_is_named(
    attempt: Callable[..., Attempt], tmp_path: Path, limit: int, value: int, message: str
) -> None:
    (tmp_path / "limit").write_text(f"{limit} {value}")
    (tmp_path / "go").touch()

    code, [line] = attempt(*(["--plain"] if message == "ulimit -f" else [])).ended(60 * PATIENCE)

    assert code == 2
    assert message in line
    assert line.startswith("pretrieve: ")


def pretrieve(folder: Path, *arguments: str, stdout: int, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    env = warm.environment(folder, **more)
    return subprocess.run(command, cwd=folder, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=600)


def test_letters_that_the_terminal_does_not_know_are_replaced(tmp_path: Path) -> None:
    Store(tmp_path / "Öl").mark()

    done = pretrieve(tmp_path, "verify", "--store", "Öl", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "?l are intact" in done.stdout.replace("\n", "")


@pytest.mark.parametrize("arguments", [("--help",), ("verify", "--store", "store")], ids=["help", "verify"])
def test_a_reader_that_has_gone_is_no_reason_for_a_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    Store(tmp_path / "store").mark()
    reading, writing = os.pipe()
    os.close(reading)

    done = pretrieve(tmp_path, *arguments, stdout=writing)

    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
