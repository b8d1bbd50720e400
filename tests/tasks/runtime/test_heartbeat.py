"""Several hosts, each a process of this machine: the numbers of one host, and no waiting for one that is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime import distributed, heartbeat, rank_processes
from tasks.runtime.heartbeat import HostLost, HostSlot, RemoteHost, claim_free_slot
from tasks.runtime.rank_processes import Processes
from tasks.runtime.ranks import run_together
from tasks.runtime.shard import ProcessFailed
from tasks.session import Execution, Session, session
from tasks.training import loop
from tests import warm
from tests.ports import free_port
from tests.tasks import together
from tests.tasks.forked_processes import fork_ranks
from tests.tasks.runtime.test_signals import last_step, saved_checkpoints, slow_down, wait_for_steps
from tests.tasks.training.small_objectives import lines

TRAINING = together.TrainingSettings(kinds=["coil"], chunk=2)
SILENCE = 10.0  # seconds after which a host is lost here
JOINER = f"""
import sys
from pathlib import Path
from tasks.runtime import heartbeat
heartbeat.SECONDS_BETWEEN_BEATS, heartbeat.SECONDS_UNTIL_LOST = 0.5, {SILENCE}
from flows.prefect_server.join_training import join
join(Path(sys.argv[1]))
"""
FIRST = f"""
import sys
from pathlib import Path
from storage.store.store import Store
from tasks.runtime import heartbeat, ranks
from tasks.session import Execution, Session, session
from tests.tasks.runtime import test_heartbeat
ranks.SECONDS_BETWEEN_BEATS, heartbeat.SECONDS_UNTIL_LOST = 0.5, {SILENCE}
store = Store(Path(sys.argv[1]))
wanted = Execution(threads=1, device="cpu", hosts=2, rendezvous=sys.argv[2], trusted_network=True)
with session(Session(store, wanted)):
    ranks.run_together(test_heartbeat.slowly, store.begin("made", "k1"), (), test_heartbeat.TRAINING, store)
"""


def slowly(out: Path, *, settings: together.TrainingSettings) -> None:
    """A training with a checkpoint at every step, and the number of each process where the test looks."""
    (Path(os.environ["TELL"]) / f"{distributed.rank()}.pid").write_text(str(os.getpid()))
    (Path(os.environ["TELL"]) / f"{distributed.rank()}.listening").write_text(
        json.dumps(together.listening_addresses())
    )
    slow_down()
    loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    together.train_for(20, out, settings)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that the hosts share; they are quick to miss each other."""
    monkeypatch.setattr(heartbeat, "SECONDS_UNTIL_LOST", SILENCE)
    monkeypatch.setattr("tasks.runtime.ranks.SECONDS_BETWEEN_BEATS", 0.5)
    monkeypatch.setenv("TELL", str(tmp_path))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # else the address of this machine's name
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store")


@pytest.fixture
def joiner(store: Store, tmp_path: Path) -> Iterator[Callable[[], warm.Command]]:
    """joiner() starts another host; what they say is in joined.txt."""
    started: list[warm.Command] = []

    def begin() -> warm.Command:
        started.append(warm.program(JOINER, str(store.root), output=tmp_path / "joined.txt"))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def wanted(processes: int = 1) -> Execution:
    return Execution(
        threads=1, device="cpu", hosts=2, processes=processes, rendezvous=f"127.0.0.1:{free_port()}",
        trusted_network=True,
    )  # fmt: skip


def run(body: Callable[..., None], store: Store, name: str, how: Execution, lines: list[str] | None = None) -> Path:
    """Run the body together; the folder that it filled."""
    out = store.begin("made", name)
    with session(Session(store, how, print_line=(lines if lines is not None else []).append)):
        run_together(body, out, (), TRAINING, store)
    return out


def wait(condition: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of two processes of one host."""
    (folder := tmp_path_factory.mktemp("whole") / "store").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        fork_ranks(patch)
        return run(together.twenty_steps, Store(folder), "whole", Execution(threads=1, device="cpu", processes=2))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_two_hosts_make_the_bytes_of_two_processes_of_one_and_one_that_is_told_to_end_has_all_save(
    uninterrupted: Path, store: Store, joiner: Callable[[], warm.Command], tmp_path: Path
) -> None:
    second, two, lines = joiner(), wanted(), list[str]()

    ours = run(together.twenty_steps, store, "weights", two, lines)

    assert f"waiting at {two.rendezvous} for 1 of 2 hosts" in lines[-2]
    assert f"pretrieve join --store DIR, where DIR is {store.root}" in lines[-2]
    assert f"host 1 listens at {two.rendezvous}" in lines[-1]
    assert not list((ours / "scratch").glob("ranks-*"))
    assert (ours / "weights.safetensors").read_bytes() == (uninterrupted / "weights.safetensors").read_bytes()
    wait(lambda: "made-weights: over" in (tmp_path / "joined.txt").read_text())

    out = store.work("made", "told")  # the same host takes part in the next one

    def tell() -> None:
        wait_for_steps(out)
        second.send(signal.SIGTERM)

    thread = threading.Thread(target=tell)
    thread.start()
    with pytest.raises(ProcessFailed, match=r"one of 2 processes was killed from outside.*run again"):
        run(slowly, store, "told", wanted())
    thread.join()

    assert "made-told: this is host 2 of 2" in (tmp_path / "joined.txt").read_text()
    assert "warning: these hosts train without passwords or encryption" in (tmp_path / "joined.txt").read_text()
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.listening").read_text()) == ["127.0.0.1"]
    assert saved_checkpoints(out)[-1] == f"{last_step(out):09d}"
    assert second.wait(300) == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_a_host_that_dies_is_named_and_the_next_run_goes_on(
    uninterrupted: Path, store: Store, joiner: Callable[[], warm.Command], tmp_path: Path
) -> None:
    out, second = store.work("made", "killed"), joiner()

    def kill() -> None:
        wait_for_steps(out)
        second.end()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(HostLost, match=f"host {socket.gethostname()} was lost.*run again to resume"):
        run(slowly, store, "killed", wanted())
    thread.join()
    wait(lambda: not any(alive(int((tmp_path / f"{rank}.pid").read_text())) for rank in range(2)))
    reached = int(saved_checkpoints(out)[-1])
    assert 2 <= reached < 20

    joiner()
    run(together.twenty_steps, store, "killed", wanted())

    assert (out / "weights.safetensors").read_bytes() == (uninterrupted / "weights.safetensors").read_bytes()
    assert lines(out) == lines(uninterrupted)
    assert (out / "visited.json").read_text().startswith(f"[{reached},")


@pytest.mark.slow
def test_when_the_first_host_dies_the_other_stops_and_nobody_takes_what_it_left(
    store: Store, joiner: Callable[[], warm.Command], tmp_path: Path
) -> None:
    joiner()
    first = warm.program(FIRST, str(store.root), str(wanted().rendezvous), output=tmp_path / "first.txt")
    wait_for_steps(store.work("made", "k1"))
    pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)]

    first.end()

    wait(lambda: not any(map(alive, pids)))
    log = tmp_path / "joined.txt"
    wait(lambda: "made-k1: ended" in log.read_text() or "which runs the stage, was lost" in log.read_text())
    (scratch,) = (store.work("made", "k1") / "scratch").glob("ranks-*")
    joiner()
    wait(lambda: log.read_text().count("waiting for trainings") == 2)
    time.sleep(5)
    assert log.read_text().count("this is host 2 of 2") == 1
    assert not (scratch / "host-1").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_one_that_is_stopped_and_not_dead_is_lost_too(
    store: Store, joiner: Callable[[], warm.Command], tmp_path: Path
) -> None:
    """As a host without power is: its connections stay open, and nothing comes."""
    out, second = store.work("made", "stopped"), joiner()

    def stop() -> None:
        wait_for_steps(out)
        os.kill(second.pid, signal.SIGSTOP)
        os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    began = time.monotonic()
    with pytest.raises(HostLost, match="was lost"):
        run(slowly, store, "stopped", wanted())
    thread.join()

    assert time.monotonic() - began < 600
    wait(lambda: not alive(int((tmp_path / "0.pid").read_text())))


@pytest.mark.slow
def test_hosts_that_do_not_come_are_not_waited_for_for_ever(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS_UNTIL_ALL_JOINED", 3.0)

    with pytest.raises(UserError, match=r"execution.hosts: 2 hosts should meet at 127.0.0.1:\d+, 1 came in 0 minutes"):
        run(slowly, store, "alone", wanted())


def test_a_host_is_heard_of_while_its_processes_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, beats = tmp_path / "ready", list[float]()
    saves = (
        "import signal, sys, time; from pathlib import Path\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(1)))\n"
        f"Path({str(ready)!r}).touch(); time.sleep(600)"
    )

    class Saving(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **given: Any) -> None:
            super().__init__([sys.executable, "-c", saves], **given)

    monkeypatch.setattr(subprocess, "Popen", Saving)
    monkeypatch.setattr(rank_processes, "SECONDS_BETWEEN_BEATS", 0.2)

    with session(Session(Store(tmp_path / "store"), wanted())):
        processes = Processes(tmp_path, Store(tmp_path / "store"), 0, lambda: beats.append(time.monotonic()))
        wait(ready.exists)
        processes.end()

    assert len(beats) > 2


def test_places_are_taken_once_and_a_pulse_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = HostSlot(tmp_path, 0)
    second, third = claim_free_slot(tmp_path, 3), claim_free_slot(tmp_path, 3)
    assert second
    assert third
    assert (second.number, third.number, claim_free_slot(tmp_path, 3)) == (1, 2, None)
    assert claim_free_slot(tmp_path / "gone", 3) is None

    pulse = RemoteHost(tmp_path, 0)
    pulse.refresh()
    assert not pulse.is_alive
    first.beat()
    pulse.refresh()
    assert pulse.is_alive
    assert not pulse.has_stopped
    monkeypatch.setattr(heartbeat, "SECONDS_UNTIL_LOST", 0.0)
    pulse.refresh()
    assert pulse.has_stopped

    first.leave()
    pulse.refresh()
    assert not pulse.is_taken
    with pytest.raises(FileNotFoundError):
        first.beat()
