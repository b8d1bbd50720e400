"""What an attempt that was cut off left is used again where it is intact, and built again where it is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.store.store import Store
from tasks.runtime.leftovers import discard, is_intact, record, unfinished
from tasks.runtime.shard import ShardJob, ShardTask, row_shards
from tasks.runtime.shards import run_shards
from tasks.runtime.work_folder import RECORDS
from tasks.session import Execution, Session, session
from tests.tasks.works import WorkSettings, files, write

EXECUTION = Execution(workers=1, threads=1, device="cpu")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_files_and_folders_are_intact_with_the_bytes_that_were_recorded(tmp_path: Path) -> None:
    (tmp_path / "logs" / "index").mkdir(parents=True)
    (tmp_path / "logs" / "index" / "a").write_text("a")
    (tmp_path / "part.parquet").write_text("rows")
    names = ["logs/index", "part.parquet"]
    assert not any(is_intact(tmp_path, name) for name in names)

    record(tmp_path, *names)
    assert all(is_intact(tmp_path, name) for name in names)
    assert unfinished(tmp_path, names) == []

    flipped(tmp_path / "logs" / "index" / "a")
    (tmp_path / "logs" / "index" / "b").write_text("more")
    flipped(tmp_path / "part.parquet")
    assert unfinished(tmp_path, names) == names
    assert not any((tmp_path / name).exists() for name in names)


def test_a_record_that_is_damaged_or_gone_is_as_good_as_none(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    record(tmp_path, "one", "two")
    [first, second] = sorted((tmp_path / RECORDS).iterdir())
    first.write_bytes(b"\xff{")
    second.unlink()

    assert unfinished(tmp_path, ["one", "two", "three"]) == ["one", "two", "three"]
    discard(tmp_path, "three")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flipped,
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:3]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_made_again_and_no_other(tmp_path: Path, damage: str) -> None:
    out, printed, built = tmp_path / "stage-key", list[str](), list[int]()

    def noting(task: ShardTask, *, settings: WorkSettings) -> None:
        built.append(task.shard.number)
        write(task, settings=settings)

    with session(Session(Store(tmp_path / "store"), EXECUTION, print_line=printed.append)):
        for _ in range(2):
            run_shards(ShardJob(noting, out, (), WorkSettings(), what="testing", unit="rows"), row_shards(35, 10))
        whole = files(out)
        DAMAGES[damage](out / "part-00002.parquet")
        run_shards(ShardJob(noting, out, (), WorkSettings(), what="testing", unit="rows"), row_shards(35, 10))

    assert built == [0, 1, 2, 3, 2]
    assert files(out) == whole
    message = "1 of 4 files that an earlier attempt left are damaged or unfinished (first part-00002.parquet)"
    damaged = [] if damage == "gone" else [f"stage-key: {message}; they are built again"]
    assert printed == [*damaged, "testing: resumes after 25 of 35 rows"]


def test_shards_of_a_version_without_records_are_made_again_with_a_message(tmp_path: Path) -> None:
    out, printed = tmp_path / "stage-key", list[str]()
    out.mkdir()
    (out / "part-00000.parquet").write_text("of an earlier version")

    with session(Session(Store(tmp_path / "store"), EXECUTION, print_line=printed.append)):
        run_shards(ShardJob(write, out, (), WorkSettings(), what="testing", unit="rows"), row_shards(10, 10))

    assert files(out) == {"part-00000.parquet": " ".join(map(str, range(10))).encode()}
    assert json.dumps(printed).count("they are built again") == 1
