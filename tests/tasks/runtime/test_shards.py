"""Shards: the same bytes wherever they are made, none made twice, no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime import shard, shards
from tasks.runtime.device import devices_for
from tasks.runtime.shard import ProcessFailed, load_once, row_shards
from tasks.session import Execution, Session, session
from tests.cluster import wait_for
from tests.tasks import sharded, works
from tests.tasks.works import files, run
from tests.tiny import PIECES, save_t5
from tests.warm import ROOT


def test_shards_are_neighbouring_rows() -> None:
    shards = row_shards(64, 10)

    assert [shard.of for shard in shards] == [[n, min(n + 10, 64)] for n in range(0, 64, 10)]
    assert [(shard.number, shard.rows, shard.files) for shard in shards[-1:]] == [(6, 4, ["part-00006.parquet"])]
    assert row_shards(0, 10) == []


def test_a_finished_shard_is_not_made_again_and_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, bars = tmp_path / "out", []
    real = shards.bar
    monkeypatch.setattr(shards, "bar", lambda **words: bars.append(real(**words)) or bars[-1])
    run(out, works.write)
    (out / "part-00002.parquet").unlink()
    (out / "part-00006.parquet").unlink()
    before = {path.name: path.stat().st_ino for path in out.glob("part-*")}

    run(out, works.write_slowly, folder=str(tmp_path))

    assert (tmp_path / f"{os.getpid()}.made").read_text().split() == ["2", "6"]
    assert all((out / name).stat().st_ino == inode for name, inode in before.items())
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [(0, 64, 64), (50, 64, 64)]
    run(out, works.complain, number=0)  # nothing is left to make
    assert len(bars) == 2


def test_what_is_kept_is_made_once_and_given_up_at_the_end(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path / "out", works.write_slowly, folder=str(tmp_path))
        for path in files(tmp_path / "out"):
            (tmp_path / "out" / path).unlink()

    assert (tmp_path / f"{os.getpid()}.loaded").read_text().split() == ["loaded"] * 2
    assert not shard._loaded


def test_one_thing_is_kept_at_a_time(store: Any) -> None:
    first = load_once(list, "ab")

    assert load_once(list, "ab") is first
    assert load_once(list, "cd") == ["c", "d"]
    assert load_once(list, "ab") is not first
    assert len(shard._loaded) == 1
    with session(Session(store, Execution(threads=1))):  # on another device, say
        assert load_once(list, "ab") is not first
    shard._loaded.clear()


@pytest.mark.slow
@pytest.mark.parametrize("on_gpus", [False, True])
def test_two_processes_share_the_shards_and_each_loads_once(on_gpus: bool, tmp_path: Path) -> None:
    run(tmp_path / "one", works.write)
    run(tmp_path / "two", works.write_slowly, 2, on_gpus, folder=str(tmp_path), num_processes=2)

    built = {path.stem: path.read_text().split() for path in tmp_path.glob("*.made")}
    assert sorted(number for numbers in built.values() for number in numbers) == list("0123456")
    assert len(built) == 2
    assert str(os.getpid()) not in built
    assert [path.read_text() for path in tmp_path.glob("*.loaded")] == ["loaded\n"] * 2
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_told_as_it_is_here(tmp_path: Path) -> None:
    for processes in (1, 2):
        with pytest.raises(UserError, match=r"^row 30: expected something else$"):
            run(tmp_path / str(processes), works.complain, processes=processes, number=3)
    with pytest.raises(ProcessFailed, match="one of 2 processes was killed"):
        run(tmp_path / "killed", works.vanish, processes=2, number=3)
    kept_ones = files(tmp_path / "killed")
    run(tmp_path / "killed", works.write)

    assert 0 < len(kept_ones) < 7
    assert len(files(tmp_path / "killed")) == 7


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ended_from_outside_no_process_stays_and_finished_shards_do(end: signal.Signals, tmp_path: Path) -> None:
    program = f"""
import signal, sys
from pathlib import Path
from tests.tasks import works
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # as Prefect does
    works.run(Path({str(tmp_path / "out")!r}), works.linger, processes=2, number=3, folder={str(tmp_path)!r})
"""
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], env=environment, start_new_session=True,
        stderr=(tmp_path / "stderr.txt").open("w"),
    )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or len(list(tmp_path.glob("*.pid"))) == 2)
        assert process.poll() is None
        pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
        wait_for(lambda: len(files(tmp_path / "out")) == 3)
        for number in (signal.SIGINT, signal.SIGTERM):  # their parent's business alone
            os.kill(pids[0], number)
        time.sleep(0.5)
        assert all(map(alive, [process.pid, *pids]))
        os.killpg(process.pid, end) if end != signal.SIGKILL else process.send_signal(end)
        code = process.wait(timeout=300)  # although what they do takes ten minutes
        wait_for(lambda: not any(map(alive, pids)), 300)
    finally:
        process.kill()
    assert code == (3 if end == signal.SIGTERM else -end)  # by the signal, not by what its processes made of it
    assert "SpawnProcess" not in (tmp_path / "stderr.txt").read_text()
    assert len(files(tmp_path / "out")) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("forked_pools")
def test_all_stages_make_the_same_bytes_in_one_process_and_in_two(tmp_path: Path, monkeypatch: Any) -> None:
    sharded.cut_small(monkeypatch)
    generator, results = save_t5(tmp_path / "generator", PIECES), []
    for processes in (1, 2):
        execution = Execution(workers=processes, threads=1, device="cpu", processes=processes)
        with session(Session(store := Store(tmp_path / str(processes)), execution)):
            results.append(sharded.run_chain(store, generator))
        assert min(sharded.parts_of(store).values()) > 5

    assert results[0] == results[1]
    assert set(results[0]) == set(sharded.SHARDED)


def test_each_process_has_a_gpu_of_its_own(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def devices(device: str, processes: int) -> list[str]:
        with session(Session(store, Execution(device=device, processes=processes))):
            return devices_for(processes)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices("auto", 2) == devices("cpu", 2) == ["cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices("auto", 2) == devices("cuda", 2) == ["cuda:0", "cuda:1"]
    assert devices("cpu", 2) == ["cpu", "cpu"]
    with pytest.raises(
        UserError, match=r"execution\.device: 2 processes take a GPU each; expected auto or cuda, found cuda:1"
    ):
        devices("cuda:1", 2)
    with pytest.raises(
        UserError, match=r"execution\.processes: expected at most 3, one for each GPU that is here, found 4"
    ):
        devices("auto", 4)
