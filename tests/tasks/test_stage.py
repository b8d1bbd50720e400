"""The stage mechanism: nothing twice, nothing half, one builder at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.rows import read_rows, read_table, write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Execution, Session, in_round, session
from tasks.stage import stage

calls: list[str] = []


class Count(Settings):
    number: int
    seed: int = 3


@stage(version=1, table=Queries)
def count(out: Path, *, settings: Count) -> None:
    """Write so many queries."""
    calls.append("count")
    write_rows(out, Queries, ({"query_id": str(n), "text": "text"} for n in range(settings.number)))


@stage(version=1, table=Queries)
def double(out: Path, queries: Artifact[Queries], other: Artifact[Queries] | None) -> None:
    """Write every query twice."""
    calls.append("double")
    rows = list(read_rows(queries, Queries))
    write_rows(out, Queries, [*rows, *rows])


@stage(version=1, table=Queries)
def two_shards(out: Path, *, settings: Count) -> None:
    """Write a shard, fail once, and go on with the second."""
    if not (out / "part-00000.parquet").exists():
        calls.append("first shard")
        write_rows(out, Queries, [{"query_id": "0", "text": ""}], "part-00000")
        raise RuntimeError("cut off")
    calls.append("second shard")
    write_rows(out, Queries, [{"query_id": "1", "text": ""}], "part-00001")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def in_new_session(store: Store) -> Session:
    return Session(store, Execution(workers=1, threads=1, device="cpu"))


def test_what_is_there_is_not_built_again(store: Store) -> None:
    first = double(queries=count(settings=Count(number=2)))
    with session(in_new_session(store)) as later:
        second = double(queries=count(settings=Count(number=2)))

    assert calls == ["count", "double"]
    assert first == second
    assert [done.cached for done in later.done.values()] == [True, True]
    assert read_table(second, Queries)["query_id"].to_pylist() == ["0", "1", "0", "1"]


def test_a_changed_setting_rebuilds_its_stage_and_those_after(store: Store) -> None:
    base = count(settings=Count(number=2))
    double(queries=base)
    calls.clear()

    double(queries=base, other=count(settings=Count(number=3)))

    assert calls == ["count", "double"]
    assert store.manifest(base.stage, base.key) is not None


def test_planning_builds_nothing_and_knows_the_keys(store: Store) -> None:
    with session(Session(store, planning=True)) as plan:
        planned = double(queries=count(settings=Count(number=2)))

    assert calls == []
    assert [done.cached for done in plan.done.values()] == [False, False]
    assert double(queries=count(settings=Count(number=2))) == planned


def test_a_failed_build_keeps_its_shards_and_publishes_nothing(store: Store) -> None:
    with pytest.raises(RuntimeError, match="cut off"):
        two_shards(settings=Count(number=1))
    assert not (store.root / "two_shards").exists()

    artifact = two_shards(settings=Count(number=1))

    assert calls == ["first shard", "second shard"]
    assert read_table(artifact, Queries)["query_id"].to_pylist() == ["0", "1"]


def test_a_damaged_input_is_named_never_used_and_rebuilt(store: Store) -> None:
    built = count(settings=Count(number=2))
    part = built.path / "part-00000.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)

    with pytest.raises(DamagedArtifact, match=r"part-00000\.parquet"):
        double(queries=built)
    assert calls == ["count"]
    with session(in_new_session(store)):
        double(queries=count(settings=Count(number=2)))
    assert calls == ["count", "count", "double"]


def test_stages_are_listed_once_under_the_round_that_first_called_them(store: Store) -> None:
    with session(in_new_session(store)) as current:
        with in_round("retriever_1"):
            count(settings=Count(number=2))
        with in_round("retriever_2"):
            count(settings=Count(number=2))

    assert [done.round for done in current.done.values()] == ["retriever_1"]


def test_the_manifest_says_how_it_was_made(store: Store) -> None:
    built = double(queries=count(settings=Count(number=2)))

    manifest = store.manifest(built.stage, built.key)
    before = store.manifest(*made_of(manifest))

    assert manifest is not None
    assert manifest.rows == 4
    assert manifest.inputs["other"] is None
    assert before is not None
    assert before.seed == 3
    assert before.settings == {"number": 2, "seed": 3}
    assert {"seconds", "cpu_seconds", "peak_memory_mib", "device", "versions"} <= set(before.built)
    assert before.built["machine"]["processor"] in Path("/proc/cpuinfo").read_text()


def made_of(manifest: object) -> tuple[str, str]:
    reference = str(manifest.inputs["queries"])  # type: ignore[attr-defined]
    named, _, key = reference.partition("/")
    return named, key


def test_execution_is_in_no_key(store: Store) -> None:
    with session(Session(store, Execution(workers=1, threads=1, device="cpu"), planning=True)):
        one = count(settings=Count(number=2)).key
    with session(Session(store, Execution(workers=7, threads=3, device="auto"), planning=True)):
        other = count(settings=Count(number=2)).key

    assert one == other


SLOW = """
import sys, time
from pathlib import Path
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Session, session
from tasks.stage import stage

@stage(version=1, table=Queries)
def slow(out: Path) -> None:
    print("building", flush=True)
    began = time.monotonic()
    while not Path(sys.argv[2]).exists() and time.monotonic() - began < 300:  # nobody waits for ever
        time.sleep(0.05)
    write_rows(out, Queries, [{"query_id": "0", "text": ""}])

with session(Session(Store(Path(sys.argv[1])), print_line=lambda line: print(line, flush=True))):
    slow()
print("done", flush=True)
"""


def start(folder: Path, until: Path) -> subprocess.Popen[str]:
    """A process that takes until a file is there."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder), str(until)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], line: str) -> str:
    """What the process has said, once it has said this."""
    assert process.stdout is not None
    lines = [""]
    while line not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], f"the process ended without saying {line!r}"
    return "".join(lines)


def test_of_two_runs_one_builds_and_the_other_waits_and_says_so(tmp_path: Path) -> None:
    first = start(tmp_path / "store", tmp_path / "built")
    wait_for(first, "building")
    second = start(tmp_path / "store", tmp_path / "built")

    output = wait_for(second, "another run builds it; waiting")
    (tmp_path / "built").touch()
    output += second.communicate(timeout=300)[0]

    assert "building" not in output
    assert "done" in output
    assert first.wait(timeout=300) == 0


def test_a_killed_builder_leaves_no_lock_and_nothing_that_looks_whole(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = start(store, tmp_path / "never")
    wait_for(first, "building")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=300)
    assert not (store / "slow").exists()

    output, _ = start(store, tmp_path).communicate(timeout=300)

    assert "waiting" not in output
    assert "done" in output


def test_the_position_of_a_stage_is_known_as_long_as_it_was_planned(store: Store) -> None:
    current = Session(store)
    assert current.progress() == ""

    current.num_stages = 1
    assert current.progress() == " [1/1]"
    with session(current):
        count(settings=Count(number=1))
    assert current.progress() == ""
