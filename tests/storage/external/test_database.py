"""A stage's database: the order of rows, what is spilled to its folder, and signals that come while it works."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage.artifact import Artifact
from storage.external import database as module
from storage.external.database import Database
from storage.rows import write_rows
from storage.tables import Queries

NUMBERS = pa.schema([("number", pa.int64()), ("name", pa.string())])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "scratch" / "database") as opened:
        yield opened


def blocks(count: int, size: int) -> Iterator[pa.Table]:
    """The numbers 0 to count - 1 in an order that is neither theirs nor that of their names."""
    numbers = np.arange(count, dtype=np.int64) * 7_919 % count
    for start in range(0, count, size):
        some = numbers[start : start + size]
        yield pa.table([some, [f"the name of number {number}" for number in some]], schema=NUMBERS)


def test_a_join_larger_than_the_memory_is_spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_LIMIT", "50MB")
    count, folder = 600_000, tmp_path / "database"
    with Database(folder) as database:
        database.create("numbers", NUMBERS, blocks(count, 50_000))
        database.execute("CREATE TABLE again AS SELECT number + 1 AS number, name FROM numbers")
        database.execute("CREATE TABLE pairs AS SELECT number, again.name FROM numbers JOIN again USING (number)")
        spilled = sum(file.stat().st_size for file in folder.iterdir())
        batches = database.batches("SELECT number, name FROM pairs ORDER BY number")
        numbers, last_name = [], ""
        for batch in batches:
            numbers.append(batch.column("number").to_numpy())
            last_name = batch.column("name")[-1].as_py()

    assert spilled > 1_000_000
    assert (np.concatenate(numbers) == np.arange(1, count)).all()
    assert last_name == f"the name of number {count - 2}"
    assert not folder.exists()


@pytest.mark.parametrize("name", ["plain", "it's [a] *"])
def test_rows_of_an_artifact_are_numbered_over_its_files(name: str, tmp_path: Path, database: Database) -> None:
    folder = tmp_path / name
    names = [f"q{number}" for number in range(7)]
    for start in range(0, 7, 3):
        rows = [{"query_id": name, "text": "t"} for name in names[start : start + 3]]
        write_rows(folder, Queries, rows, f"part-{start:05d}")

    database.view("queries", Artifact("queries", "0", folder), Queries)

    rows_by_id = database.rows("SELECT row, query_id FROM queries WHERE row > ? ORDER BY query_id DESC", 1)
    assert [(row["row"], row["query_id"]) for row in rows_by_id] == list(enumerate(names))[:1:-1]


def test_an_artifact_without_files_has_no_rows(tmp_path: Path, database: Database) -> None:
    database.view("queries", Artifact("queries", "0", tmp_path / "nothing"), Queries)

    assert list(database.rows("SELECT row, query_id, text FROM queries")) == []


def test_several_results_are_read_at_once(database: Database) -> None:
    database.create("numbers", NUMBERS, blocks(30_000, 10_000))
    rising, falling = (database.rows(f"SELECT number FROM numbers ORDER BY number {way}") for way in ("ASC", "DESC"))

    pairs = list(zip(rising, falling, strict=True))

    assert all(one["number"] + other["number"] == 29_999 for one, other in pairs)
    assert len(pairs) == 30_000


class Interrupted(BaseException):
    """What the handler of a signal raises in this test."""


@pytest.fixture
def interrupting() -> Iterator[None]:
    """SIGUSR1 raises `Interrupted`."""

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_what_a_signal_raises_ends_a_query_at_once(
    seconds: float, tmp_path: Path, interrupting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_and_interrupt(*arguments: Any) -> Any:
        future = submit(*arguments)
        if seconds:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            signal.raise_signal(signal.SIGUSR1)  # before the query has begun, or in its first moment
        return future

    with Database(tmp_path / "database") as database:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_interrupt)
        begin = time.monotonic()
        with pytest.raises(Interrupted):
            database.execute(
                "CREATE TABLE sums AS SELECT sum(a.range * b.range) FROM range(1_000_000_000) a, range(9) b"
            )
        monkeypatch.undo()
        assert time.monotonic() - begin < 30
        database.execute("CREATE TABLE more (number INTEGER)")
    assert time.monotonic() - begin < 30
    assert not (tmp_path / "database").exists()
