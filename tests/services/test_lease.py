"""Leases in a real Redis: one builder, whatever happens to a process, to Redis or to the time between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import UserError
from storage.store.locks import LOCKS, LeaseLost
from storage.store.store import Store
from tests.services.own_redis import PASSWORD, Redis
from tests.storage.published import KEY, described

ROOT = Path(__file__).resolve().parent.parent.parent
LEASE = 12.0  # seconds; a busy machine must renew it in a third of that
BUILDER = """
import sys, time
from pathlib import Path
from storage.store.store import Store
from tests.storage.published import KEY, described
store, go, name = Store(Path(sys.argv[1]), lease=float(sys.argv[2])), Path(sys.argv[3]), sys.argv[4]
def say(what):
    print(what, flush=True)
with store.lock("made", KEY, lambda: say("waiting")):
    say("holding")
    if store.manifest("made", KEY):
        say("found")
    else:
        work = store.begin("made", KEY)
        say(f"left {sorted(path.name for path in work.iterdir())}")
        (work / f"{name}.bin").write_text(name)
        while not go.exists():
            time.sleep(0.05)
        store.publish("made", KEY, described)
        say("published")
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A server that has been up for longer than a lease."""
    started = Redis(tmp_path_factory.mktemp("redis"))
    started.start()
    try:
        while started.client().info("server")["uptime_in_seconds"] <= LEASE:
            time.sleep(0.2)
        yield started
    finally:
        started.stop()


@pytest.fixture(autouse=True)
def known(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS, redis.address)


class Builder:
    """A process that builds the artifact when it may, and publishes it when it is told to."""

    def __init__(self, folder: Path, name: str) -> None:
        self.store, self.go, self._out = folder / "store", folder / f"{name}.go", folder / f"{name}.txt"
        command = [sys.executable, "-c", BUILDER, str(self.store), str(LEASE), str(self.go), name]
        with self._out.open("w") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    @property
    def said(self) -> str:
        return self._out.read_text()

    def until(self, what: str, seconds: float = 600) -> None:
        """Wait until it has said so."""
        wait(lambda: what in self.said, seconds, lambda: f"{what}: {self.said}")

    def ended(self) -> int:
        return self.process.wait(600)


def wait(for_what: Callable[[], Any], seconds: float = 600, message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not for_what():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Callable[[str], Builder]]:
    """builder(name) starts one; none outlives the test, and none has said the password."""
    started: list[Builder] = []

    def start(name: str) -> Builder:
        started.append(Builder(tmp_path, name))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()
        assert PASSWORD not in process.said
    for path in (tmp_path / "store").rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes()


def files(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "made" / KEY).glob("*"))


def test_two_that_want_one_artifact_build_it_once(builder: Callable[[str], Builder], tmp_path: Path) -> None:
    first = builder("first")
    first.until("left []")
    second = builder("second")
    second.until("waiting")
    store = Store(first.store)
    assert store.is_being_built(store.work("made", KEY))
    time.sleep(LEASE * 1.5)  # it is renewed
    assert "holding" not in second.said

    first.go.touch()

    assert (first.ended(), second.ended()) == (0, 0)
    assert first.said.split("\n")[-2] == "published"
    assert second.said.split("\n") == ["waiting", "holding", "found", ""]
    assert not store.is_being_built(store.work("made", KEY))


def test_what_a_dead_host_was_building_is_taken_over(builder: Callable[[str], Builder]) -> None:
    first = builder("first")
    first.until("left []")
    second = builder("second")
    second.until("waiting")

    first.process.kill()
    killed = time.monotonic()
    second.until("holding", LEASE + 600)

    assert time.monotonic() - killed > LEASE / 2  # of which a third may have gone by
    second.until("left ['first.bin']")
    second.go.touch()
    assert second.ended() == 0
    assert files(second.store) == ["first.bin", "manifest.json", "second.bin"]


def test_the_holder_of_a_lease_survives_a_flushed_redis(builder: Callable[[str], Builder], redis: Redis) -> None:
    first = builder("first")
    first.until("left []")
    second = builder("second")
    second.until("waiting")

    before = redis.client().info("server")["run_id"]
    redis.stop()
    redis.start()  # empty, but the holder may be quick to take its lease again
    assert redis.client().info("server")["run_id"] != before
    wait(lambda: redis.client().keys(f"pretrieve:*:made-{KEY}"))
    time.sleep(LEASE * 1.5)
    assert "holding" not in second.said

    first.go.touch()
    assert (first.ended(), second.ended()) == (0, 0)
    assert "published" in first.said
    assert "found" in second.said


def test_redis_may_be_away_for_less_than_a_lease(builder: Callable[[str], Builder], redis: Redis) -> None:
    first = builder("first")
    first.until("left []")
    [name] = redis.client().keys(f"pretrieve:*:made-{KEY}")
    wait(lambda: redis.client().pttl(name) > 950 * LEASE)  # just renewed

    redis.sleep()
    time.sleep(LEASE / 3)
    redis.wake()
    time.sleep(LEASE)

    first.go.touch()
    assert first.ended() == 0
    assert "published" in first.said


def test_without_redis_for_longer_the_holder_stops(builder: Callable[[str], Builder], redis: Redis) -> None:
    first = builder("first")
    first.until("left []")

    redis.sleep()
    slept = time.monotonic()
    try:
        first.until("LeaseLost")
        assert time.monotonic() - slept < 2 * LEASE
    finally:
        redis.wake()

    assert first.ended() == 1
    expected = f"it could not be renewed for {LEASE:.0f} s; nothing was published. Run the same command again to resume"
    assert expected in first.said
    assert not (first.store / "made").exists()


def test_a_holder_that_slept_too_long_stops_when_it_wakes(builder: Callable[[str], Builder]) -> None:
    first = builder("first")
    first.until("left []")
    second = builder("second")
    second.until("waiting")

    first.process.send_signal(signal.SIGSTOP)
    second.until("holding")
    first.go.touch()
    first.process.send_signal(signal.SIGCONT)

    assert first.ended() == 1
    assert "LeaseLost" in first.said
    assert "published" not in first.said.split("\n")
    second.go.touch()
    assert second.ended() == 0
    assert "published" in second.said


def test_a_lost_lease_interrupts_although_another_was_taken_within_it(redis: Redis, tmp_path: Path) -> None:
    """Generating queries holds the lease on its artifact and, for hours, those on the generation cache."""
    store, client = Store(tmp_path, lease=LEASE), redis.client()
    began = time.monotonic()

    def lose_the_outer_one() -> None:
        with store.lock("made", KEY, lambda: None):
            (name,) = client.scan_iter("*made-*")
            with store.lock("ledger", KEY, lambda: None):
                client.set(name, "another process", px=60_000)
                time.sleep(4 * LEASE)

    with pytest.raises(LeaseLost, match=r"made.*another process has it"):
        lose_the_outer_one()

    assert time.monotonic() - began < 2 * LEASE
    client.flushall()  # the key of the other process


def test_publishing_asks_once_more(redis: Redis, tmp_path: Path) -> None:
    """Not in the main thread, where nothing would interrupt."""
    store, raised = Store(tmp_path / "store", LEASE), list[BaseException]()

    def build() -> None:
        try:
            with store.lock("made", KEY, lambda: None):
                (store.begin("made", KEY) / "data.bin").write_text("x")
                (key,) = redis.client().keys(f"pretrieve:*:made-{KEY}")
                redis.client().set(key, "another's")
                store.publish("made", KEY, described)
        except LeaseLost as error:
            raised.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join(600)

    assert "another process has it" in str(raised[0])
    assert store.manifest("made", KEY) is None
    assert store.is_being_built(store.work("made", KEY))  # the other's lease was not given back
    redis.client().flushall()


def test_a_store_has_one_name_wherever_it_is_mounted(redis: Redis, tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here", LEASE), Store(tmp_path / "there", LEASE)
    with here.lock("made", KEY, lambda: None):
        (there.root / ".locks").mkdir(parents=True)
        (there.root / ".locks" / "shared").write_bytes((here.root / ".locks" / "shared").read_bytes())

        assert there.is_being_built(there.work("made", KEY))
        assert not Store(tmp_path / "another", LEASE).is_being_built(there.work("made", KEY))


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in (redis.address.replace(PASSWORD, "wr0ng"), redis.address.replace(f":{PASSWORD}@", "")):
        monkeypatch.setenv(LOCKS, address)
        store = Store(tmp_path, LEASE)

        with (
            pytest.raises(UserError, match=f"Redis at 127.0.0.1:{redis.port} refuses the user or the password") as said,
            store.lock("made", KEY, lambda: None),
        ):
            pass

        assert "wr0ng" not in str(said.value)


def test_the_signals_handler_is_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)

    with Store(tmp_path, LEASE).lock("made", KEY, lambda: None):
        os.kill(os.getpid(), signal.SIGUSR1)  # somebody else's: nothing is lost

    assert signal.getsignal(signal.SIGUSR1) == before


def test_an_error_after_a_takeover_is_reported_as_the_lost_lease(redis: Redis, tmp_path: Path) -> None:
    """The next builder removes files of the stopped one, so the error about a missing file would mislead."""
    store, client = Store(tmp_path, lease=LEASE), redis.client()

    def taken_over() -> None:
        with store.lock("made", KEY, lambda: None):
            (name,) = client.scan_iter("*made-*")
            client.set(name, "another process", px=60_000)
            raise FileNotFoundError("removed by the other builder")

    with pytest.raises(LeaseLost, match="another process has it; nothing was published") as lost:
        taken_over()
    client.flushall()
    assert isinstance(lost.value.__cause__, FileNotFoundError)


def test_an_error_under_a_held_lease_is_raised_as_it_is(redis: Redis, tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="of its own"),
        Store(tmp_path, lease=LEASE).lock("made", KEY, lambda: None),
    ):
        raise FileNotFoundError("of its own")
