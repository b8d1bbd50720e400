"""Locks of one host, and what a store that hosts share says without its Redis. Leases: tests/services/test_lease.py."""

import fcntl
import multiprocessing
import socket
import threading
from pathlib import Path

import pytest

from storage.errors import UserError
from storage.store import locks
from storage.store.locks import LOCKS
from storage.store.store import Store
from storage.store.store_locks import _name_of_shared

PASSWORD = "s3cret-word"


@pytest.fixture(autouse=True)
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCKS, raising=False)


def hold(store: Path, events: list[str]) -> None:
    with Store(store).lock("made", "k1", lambda: events.append("waiting")):
        events.append("holding")


def test_a_second_process_waits_and_reports_it_once(tmp_path: Path) -> None:
    store, events = Store(tmp_path), list[str]()
    other = threading.Thread(target=hold, args=(tmp_path, events))
    assert not store.is_being_built(store.work("made", "k1"))

    with store.lock("made", "k1", lambda: events.append("never")):
        assert store.is_being_built(store.work("made", "k1"))
        assert not store.is_being_built(store.work("made", "k2"))
        other.start()
        while not events:
            other.join(0.05)
        other.join(0.2)
        assert events == ["waiting"]
    other.join(300)

    assert events == ["waiting", "holding"]
    assert not store.is_being_built(store.work("made", "k1"))


def test_who_only_asks_whether_a_lock_is_held_is_not_taken_for_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = (tmp_path / "made-k1").open("w")
    fcntl.flock(file, fcntl.LOCK_SH)  # as `is_held` does
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: file.close())  # after a moment it has its answer

    with locks.FileLocks(tmp_path).hold("made-k1", lambda: pytest.fail("waited for another run")):
        assert file.closed


def test_a_shared_store_needs_the_address_of_its_redis(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("made", "k1")
    (tmp_path / ".locks").mkdir()
    (tmp_path / ".locks" / "shared").write_text("0123\n")

    for ask in (lambda: hold(tmp_path, []), lambda: store.is_being_built(store.work("made", "k1"))):
        with pytest.raises(UserError, match=r"\.locks/shared: hosts share this store.*expected .* in PRETRIEVE_LOCKS"):
            ask()


@pytest.mark.parametrize(
    "address",
    [
        f"http://:{PASSWORD}@localhost:6379/0", f"redis://:{PASSWORD}@localhost:{PASSWORD}/0", PASSWORD,
        f"unix://:{PASSWORD}@/tmp/redis.sock", f"redis://:{PASSWORD}@localhost:6379/0?max_connections={PASSWORD}",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_showing_its_password(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCKS, address)

    with pytest.raises(UserError, match="PRETRIEVE_LOCKS: expected redis://:PASSWORD@HOST") as raised:
        hold(tmp_path, [])

    assert PASSWORD not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_redis_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv(LOCKS, f"redis://:{PASSWORD}@127.0.0.1:{port}/0")

    with pytest.raises(UserError, match=f"PRETRIEVE_LOCKS: no answer from Redis at 127.0.0.1:{port}") as raised:
        hold(tmp_path, [])
    with pytest.raises(UserError, match=f"127.0.0.1:{port}"):
        Store(tmp_path).is_being_built(tmp_path / ".work" / "made-k1")

    assert PASSWORD not in str(raised.value)
    assert not (tmp_path / ".locks" / "shared").exists()
    monkeypatch.delenv(LOCKS)
    hold(tmp_path, [])  # so the store is still one host's


def test_processes_that_share_a_store_at_once_agree_on_its_name(tmp_path: Path) -> None:
    path = tmp_path / ".locks" / "shared"

    with multiprocessing.get_context("spawn").Pool(4) as pool:
        names = pool.map(_name_of_shared, [path] * 40, chunksize=1)

    assert set(names) == {path.read_text().strip()}
    assert len(names[0]) == 32
    assert [file.name for file in path.parent.iterdir()] == ["shared"]
