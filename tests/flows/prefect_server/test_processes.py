"""Background processes are known by number and beginning, and end with everything that they have started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from flows.prefect_server.processes import Background, end, running, start, start_moment, stop, with_environment

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
# It ignores SIGTERM, and so does the process that it has started.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('child', flush=True); time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""
# It ends only once the other has received SIGTERM, too.
SOCIABLE = """
import pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def end(*_):
    (folder / f"{name}.signalled").touch()
    while len(list(folder.glob("*.signalled"))) < 2:
        time.sleep(0.05)
    print("ended", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("here", flush=True)
time.sleep(600)
"""


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no test may end."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def begun(folder: Path, name: str, command: list[str], word: str) -> Background:
    """Started, and it has said a word."""
    one = start(folder, folder / f"{name}.log", name, command, dict(os.environ), "http://here:1")
    deadline = time.monotonic() + 300
    while word not in (folder / f"{name}.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return one


def test_another_process_finds_and_ends_what_was_started(tmp_path: Path) -> None:
    one = begun(tmp_path, "one", SLEEP, "here")

    assert running(tmp_path) == {"one": one}
    assert os.getsid(one.pid) == one.pid  # the terminal's Ctrl-C does not reach it
    stop(tmp_path, one)

    assert running(tmp_path) == {}
    assert not list(tmp_path.glob("*.json"))
    assert not psutil.pid_exists(one.pid)


def test_a_number_that_another_process_has_now_is_not_ours(tmp_path: Path, innocent: subprocess.Popen[bytes]) -> None:
    began = start_moment(innocent.pid)
    recycled = Background("one", innocent.pid, start_moment(os.getpid()))
    (tmp_path / "one.json").write_text(json.dumps(asdict(recycled)))

    assert running(tmp_path) == {}
    stop(tmp_path, recycled)

    assert innocent.poll() is None
    assert Background("one", innocent.pid, began).process().pid == innocent.pid


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the clock is all there is")
def test_a_changed_clock_leaves_a_process_ours(
    innocent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Background("one", innocent.pid, start_moment(innocent.pid))
    # psutil adds the moment of the machine's start, which is a clock's, to the ticks since then.
    at = psutil.Process(innocent.pid).create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: at + 3600)

    assert one.process()


def test_all_get_the_signal_before_any_is_waited_for(tmp_path: Path) -> None:
    both = [begun(tmp_path, name, [sys.executable, "-c", SOCIABLE, name, str(tmp_path)], "here") for name in "ab"]

    stop(tmp_path, *both)

    for one in both:
        assert not one.process()
        assert "ended" in (tmp_path / f"{one.name}.log").read_text()


def test_who_does_not_end_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.prefect_server.processes.SECONDS_TO_END", 1.0)
    one = begun(tmp_path, "one", [sys.executable, "-c", STUBBORN], "child")
    [child] = psutil.Process(one.pid).children()

    stop(tmp_path, one)

    assert not one.process()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_without_its_parent_is_recognised_by_its_environment(innocent: subprocess.Popen[bytes]) -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    orphan = subprocess.Popen(["sleep", "600"], env=os.environ | {"PRETRIEVE_MARK": mark}, start_new_session=True)
    try:
        while not psutil.Process(orphan.pid).environ():  # the kernel fills it in after Popen has returned
            time.sleep(0.01)
        results = with_environment(PRETRIEVE_MARK=mark)

        assert [process.pid for process in results] == [orphan.pid]
        end(results, results)
        assert not psutil.pid_exists(orphan.pid)
        assert innocent.poll() is None
    finally:
        orphan.kill()
