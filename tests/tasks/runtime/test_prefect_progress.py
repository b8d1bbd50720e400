"""The progress artifact of a long stage: what it says, and that no server can hold the work up.

What a server shows in the end is in tests/flows/prefect_server/test_ui_artifacts.py.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.store.store import Store
from tasks.runtime import prefect_progress
from tasks.runtime.prefect_progress import ProgressReporter, show_progress
from tasks.runtime.progress import bar, progress, watched_by
from tasks.session import Session, session

KEY = "pretrain-0123abcd-progress"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where the server should be: nobody listens until the test does. It is asked after a moment."""
    monkeypatch.setattr(prefect_progress, "SECONDS_UNTIL_SHOWN", 0.2)
    monkeypatch.setattr(prefect_progress, "SECONDS_BETWEEN_LOOKS", 0.2)
    monkeypatch.setattr(prefect_progress, "SECONDS_FOR_THE_LAST_WORD", 1.0)
    monkeypatch.setattr(prefect_progress, "SECONDS_FOR_AN_ANSWER", 300.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.getsockname()[1]}/api"}):
            yield server


def work(seconds: float, steps: int = 20) -> None:
    """A stage's body with a bar."""
    for _ in progress(range(steps), what="training", unit="steps", total=steps):
        time.sleep(seconds / steps)


def receives_connection(server: socket.socket, *, within: float) -> bool:
    """Whether somebody connects within so many seconds."""
    server.settimeout(within)
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


def threads(key: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == key]


def watch() -> ProgressReporter:
    """One whose thread has ended before it began."""
    built = ProgressReporter(KEY, None, None)
    built.end(well=False)
    return built


def test_a_bar_is_given_to_who_watches_and_one_that_is_not_drawn_is_not() -> None:
    seen = []

    with watched_by(seen.append):
        with bar(what="training", unit="steps", total=3) as counter:
            pass
        bar(what="training", unit="steps", total=3, shown=False)
    bar(what="training", unit="steps", total=3).close()

    assert seen == [counter]


def test_a_look_says_what_is_counted_how_fast_and_what_is_left() -> None:
    watching = watch()
    with bar(what="training", unit="steps", total=50_000, done=1_000) as counter:
        assert watching.progress(counter) == (2.0, "training: 1,000 of 50,000 steps")
        time.sleep(0.1)
        counter.update(11_500)
        percent, words = watching.progress(counter)

    assert percent == 25.0
    assert re.fullmatch(r"training: 12,500 of 50,000 steps, [\d,]+ steps/s, .+ left", words)


def test_what_an_earlier_attempt_had_finished_does_not_make_the_rate() -> None:
    watching = watch()
    with bar(what="encoding", unit="passages", total=1000) as counter:
        counter.update(900)  # shards that were found
        watching.progress(counter)
        time.sleep(0.5)
        counter.update(10)
        _, words = watching.progress(counter)

    assert 0 < float(words.removeprefix("encoding: 910 of 1,000 passages, ").split()[0]) <= 20
    assert words.endswith(" left")


def test_a_bar_without_an_end_has_no_time_left() -> None:
    watching = watch()
    with bar(what="learning weights", unit="passes") as counter:
        watching.progress(counter)
        counter.update(3)
        time.sleep(0.01)
        percent, words = watching.progress(counter)

    assert percent == 0.0
    assert words.startswith("learning weights: 3 passes, ")
    assert "left" not in words


def test_a_short_stage_asks_no_server(port: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_progress, "SECONDS_UNTIL_SHOWN", 60.0)
    port.listen()

    with show_progress("short"):
        work(0.6)

    assert not receives_connection(port, within=0.5)
    assert not threads("short")


def test_a_long_stage_asks_the_server_while_it_works(port: socket.socket) -> None:
    port.listen()

    with show_progress(KEY), bar(what="training", unit="steps", total=3):
        assert receives_connection(port, within=120)


def test_a_stage_without_a_bar_starts_no_thread(port: socket.socket) -> None:
    with show_progress("quiet"):
        assert not threads("quiet")


@pytest.mark.parametrize("listens", [False, True], ids=["refused", "silent"])
def test_a_server_that_is_away_does_not_hold_the_stage_up(port: socket.socket, listens: bool) -> None:
    if listens:
        port.listen()  # takes what it is asked, and answers nothing
    started = time.monotonic()

    with show_progress(KEY):
        work(0.6)

    assert time.monotonic() - started < 150  # an answer is awaited for twice as long


def test_a_failure_passes_through(port: socket.socket) -> None:
    def interrupted() -> None:
        with show_progress(KEY):
            work(0.3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_a_log_line_has_count_rate_time_left_and_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("prefect.get_run_logger", lambda: type("Log", (), {"info": staticmethod(lines.append)}))
    watching = watch()
    with bar(what="training", unit="steps", total=100, done=10) as counter:
        counter.set_postfix({"mlm": "1.234"}, refresh=False)
        watching.progress(counter)
        time.sleep(0.05)
        counter.update(10)
        words = watching.progress(counter)[1]
        watching._log(words, counter)
        assert not lines  # not within the first minute
        watching._logged -= prefect_progress.SECONDS_BETWEEN_LOG_LINES
        watching._log(words, counter)
        watching._log(words, counter)

    [line] = lines
    assert re.fullmatch(r"training: 20 of 100 steps, [\d,.]+ steps/s, .+ left, mlm=1\.234", line)


def test_resumed_work_says_where_it_resumes(tmp_path: Path) -> None:
    lines: list[str] = []
    with session(Session(Store(tmp_path), print_line=lines.append)):
        for done in (0, 1_200):
            bar(what="training", unit="steps", total=50_000, done=done).close()
        bar(what="training", unit="steps", total=50_000, done=7, shown=False).close()

    assert lines == ["training: resumes after 1,200 of 50,000 steps"]
