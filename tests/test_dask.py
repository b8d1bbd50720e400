"""Shards on a Dask cluster: those of one process to the byte, also when a worker dies, and few task runs."""

import _thread
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from distributed import Future

from storage.errors import UserError
from storage.store.publishing import SCRATCH
from storage.store.store import Store
from tasks.runtime import dask_cluster
from tasks.runtime.leftovers import record
from tasks.runtime.shard import ProcessFailed
from tasks.runtime.work_folder import RECORDS
from tasks.session import Execution, Session, session
from tests import prefect_database, warm
from tests.cluster import Cluster, cluster, environment, wait_for
from tests.ports import free_port
from tests.services.servers import call
from tests.tasks import sharded, works
from tests.tiny import PIECES, save_t5
from tests.warm import ROOT

pytestmark = pytest.mark.slow
DOCUMENTS = 100
LOGIN = ("admin", "a-secret-of-the-test")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers for all tests, of which the last kill one after the other."""
    with cluster(tmp_path_factory.mktemp("dask") / "cluster") as results:
        yield results


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a generator, and the hashes of what one process makes."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        sharded.cut_small(patch)
        generator, store = save_t5(folder / "generator", PIECES), Store(folder / "store")
        with session(Session(store, Execution(workers=1, threads=1, device="cpu"))):
            yield folder, sharded.run_chain(store, generator, DOCUMENTS)


def test_an_error_on_a_worker_is_that_of_one_process(two: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^row 30: expected something else$"):
        works.run(tmp_path / "out", works.complain, dask=two.address, number=3)
    assert not list((tmp_path / "out" / SCRATCH).glob("dask-*"))


def test_a_group_that_fails_while_it_is_asked_for_is_heard(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended, asked = Future.done, set()

    def ends_just_after_the_answer(future: Future) -> bool:
        is_asked_again = future.key in asked
        asked.add(future.key)
        wait_for(lambda: has_ended(future))
        return is_asked_again

    monkeypatch.setattr(Future, "done", ends_just_after_the_answer)
    monkeypatch.setattr(dask_cluster, "SECONDS_UNTIL_FILES_SHOW", 1)
    with pytest.raises(UserError, match=r"^row 30: expected something else$"):
        works.run(tmp_path / "out", works.complain, dask=two.address, number=3)


def test_an_interrupted_run_ends_at_once_and_so_do_its_groups(
    two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "GROUPS", 2)
    out, folder = tmp_path / "out", tmp_path / "told"
    folder.mkdir()
    threading.Thread(
        target=lambda: wait_for(lambda: len(works.files(out)) > 3) and _thread.interrupt_main(), daemon=True
    ).start()
    with pytest.raises(KeyboardInterrupt):
        works.run(out, works.write_slowly, dask=two.address, rows=6000, folder=str(folder), num_processes=2)
    wait_for(lambda: no_more(out))
    assert len(works.files(out)) < 500
    assert {path.stem for path in folder.glob("*.loaded")} == {str(worker.pid) for worker in two.workers}
    assert all(path.read_text() == "loaded\n" for path in folder.glob("*.loaded"))

    works.run(out, works.write, rows=6000)
    assert len(works.files(out)) == 600


def no_more(out: Path) -> bool:
    before = len(works.files(out))
    time.sleep(0.5)
    return len(works.files(out)) == before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server that wants a password."""
    port = free_port()
    home = str(tmp_path_factory.mktemp("prefect"))
    prefect_database.provide(Path(home))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.served_prefect", "127.0.0.1", str(port)],
        env=environment(PREFECT_HOME=home, PREFECT_SERVER_API_AUTH_STRING=":".join(LOGIN)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{port}/api/health"))
        assert process.poll() is None
        yield f"http://127.0.0.1:{port}/api"
    finally:
        process.terminate()
        process.wait(timeout=300)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, auth=LOGIN, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


def posted(server: str, what: str) -> list[dict[str, Any]]:
    answer = call("POST", f"{server}/{what}/filter", json={"limit": 200}, auth=LOGIN)
    rows: list[dict[str, Any]] = answer.raise_for_status().json()
    return rows


def test_a_flow_in_the_middle_of_which_a_worker_is_killed_makes_what_one_process_makes(
    two: Cluster, here: tuple[Path, dict[str, str]], server: str, tmp_path: Path
) -> None:
    folder, expected = here
    shutil.copytree(folder / "generator", tmp_path / "generator", copy_function=shutil.copy2)
    login = {"PREFECT_API_URL": server, "PREFECT_API_AUTH_STRING": ":".join(LOGIN), "PREFECT_HOME": str(tmp_path)}
    output = tmp_path / "stdout.txt"
    flow = warm.start(
        str(tmp_path), two.address, str(DOCUMENTS), cwd=ROOT, env=environment(**login), stdout=output,
        stderr=tmp_path / "stderr.txt", module="tests.dask_flow",
    )  # fmt: skip
    try:
        finished = wait_for(lambda: flow.poll() is not None or encoded(tmp_path / "store"))
        assert flow.poll() is None, "the flow has failed"
        two.workers[0].end()
        assert flow.wait(900) == 0
    finally:
        flow.end()
    assert two.workers[1].poll() is None
    logs = [path.read_text() for path in two.folder.glob("*.log")]

    assert json.loads(output.read_text().splitlines()[-1]) == expected
    assert set(expected) == set(sharded.SHARDED)
    assert min(sharded.parts_of(Store(tmp_path / "store")).values()) > 8
    [built] = (tmp_path / "store" / "encode").iterdir()
    assert len(finished) < len(list(built.rglob("*.npy")))
    shard = Counter(Path(name).name[:5] for name in finished)
    whole = [name for name in finished if shard[Path(name).name[:5]] == len(list(built.rglob("00000*.npy")))]
    assert whole
    assert all((built / name).stat().st_ino == finished[name] for name in whole)
    count = wait_for(lambda: completed(server))
    assert count["shards"] == 3 * len(sharded.SHARDED)
    assert sum(count.values()) < 30  # the stages, and for each flow of shards a task run that stands for it
    flows = Counter(row["name"].rpartition(" ")[0] for row in posted(server, "flow_runs") if row["parent_task_run_id"])
    assert flows == {f"shards of {name}": 1 for name in sharded.SHARDED}
    assert not any(LOGIN[1] in log for log in logs)


def encoded(store: Path) -> dict[str, int]:
    """The inodes of encoded files whose hashes are recorded, once every group has begun and none is near its end."""
    files = {
        path.relative_to(work).as_posix(): path
        for work in (store / ".work").glob("encode-*") for path in sorted(work.glob("*/*.npy"))
    }  # fmt: skip
    # A file without a record counts as unfinished, and is encoded again.
    recorded = {path.name for path in store.glob(f".work/encode-*/{RECORDS}/*.json")}
    finished = {
        name: path.stat().st_ino for name, path in files.items() if f"{name.replace('/', '-')}.json" in recorded
    }
    return finished if len(finished) > 20 else {}


def completed(server: str) -> Counter[str] | None:
    """How many task runs of each name there are, once the server has heard of the shards' and the end of all."""
    rows = posted(server, "task_runs")
    count = Counter("shards" if row["name"].startswith("shards ") else row["name"] for row in rows)
    is_complete = count["shards"] >= 3 * len(sharded.SHARDED) and all(row["state_name"] == "Completed" for row in rows)
    return count if is_complete else None


def test_a_scheduler_that_is_lost_is_named(two: Cluster, tmp_path: Path) -> None:
    """After the test above, one worker is left."""
    folder = tmp_path / "told"
    folder.mkdir()
    threading.Thread(
        target=lambda: wait_for(lambda: works.files(tmp_path / "out")) and two.scheduler.end(), daemon=True
    ).start()
    with pytest.raises(ProcessFailed, match=f"the Dask scheduler at {two.address} was lost"):
        works.run(tmp_path / "out", works.write_slowly, dask=two.address, rows=3000, folder=str(folder))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1", "ftp://127.0.0.1:9"])
def test_a_scheduler_that_does_not_answer_is_named(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "SECONDS_TO_CONNECT", 0.5)
    with pytest.raises(UserError, match=f"^execution.dask: no Dask scheduler answers at {address} "):
        works.run(tmp_path / "out", works.write, dask=address)


def test_a_worker_that_does_not_see_the_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}/other: not there on {socket.gethostname()}; every Dask worker"):
        dask_cluster.make_group(str(tmp_path / "other" / SCRATCH / "dask-1" / "order.json"), 0, 1)


def test_what_workers_say_is_made_but_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = works.row_shards(20, 10)

    def show() -> None:
        (tmp_path / "part-00000.parquet").touch()
        record(tmp_path, "part-00000.parquet")

    threading.Timer(0.5, show).start()
    dask_cluster._wait_for(tmp_path, shards[:1])
    monkeypatch.setattr(dask_cluster, "SECONDS_UNTIL_FILES_SHOW", 0.1)
    with pytest.raises(UserError, match=r"part-00001.parquet: a Dask worker has reported it complete, but"):
        dask_cluster._wait_for(tmp_path, shards)


def test_an_order_that_was_withdrawn_is_not_made(tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())
    dask_cluster.make_group(str(tmp_path / SCRATCH / "dask-1" / "order.json"), 0, 1)
    assert not list(tmp_path.iterdir())
