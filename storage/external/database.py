"""A DuckDB database in a stage's work folder: joins, sorts and counts over tables that are larger than the memory.

DuckDB keeps at most `MEMORY_LIMIT` in memory and spills the rest to files in the folder. A statement should do one
thing, a join or a sort: each operator of a statement needs memory of its own, and DuckDB fails where they need more
than the limit together. DuckDB promises no order of rows without `ORDER BY`.
"""

from __future__ import annotations

import contextlib
import glob
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.rows import parts, schema_of
from storage.tables import Table

MEMORY_LIMIT = "1GB"
ROWS_PER_BATCH = 10_000  # of a result, which is read batch by batch
SECONDS_BETWEEN_INTERRUPTIONS = 0.05

T = TypeVar("T")


class Database:
    """Tables that live as long as a `with` block; what they need beyond the memory limit is spilled to `folder`.

    The folder is deleted before and after the block.
    """

    def __init__(self, folder: Path) -> None:
        import duckdb

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(folder),
            "threads": 1,
            "preserve_insertion_order": False,  # takes memory, and every query that needs an order names it
            "autoinstall_known_extensions": False,  # no network
        }
        self._folder, self._worker = folder, ThreadPoolExecutor(1)
        self._connection = duckdb.connect(":memory:", config=options)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.shutdown()
        self._connection.close()
        shutil.rmtree(self._folder)

    def create(self, name: str, schema: pa.Schema, blocks: Iterable[pa.Table] = ()) -> None:
        """Create a table with the columns of `schema` and insert the blocks, one in memory at a time."""
        self._wait(lambda: self._connection.from_arrow(schema.empty_table()).create(name))
        for block in blocks:
            self.insert(name, block)

    def insert(self, name: str, block: pa.Table) -> None:
        """Append the rows of an Arrow table, whose columns have the order of the table's."""
        self._wait(lambda: self._connection.from_arrow(block).insert_into(name))

    def view(self, name: str, artifact: Artifact[Any], table: type[Table]) -> None:
        """Name an artifact's rows, which are read from its files; their column `row` is their number, from 0."""
        files = parts(artifact.path)
        if not files:
            self.create(name, pa.schema([pa.field("row", pa.int64()), *schema_of(table)]))
            return
        first_rows = list(accumulate((pq.read_metadata(file).num_rows for file in files), initial=0))
        paths = ", ".join(_quoted(glob.escape(str(file))) for file in files)
        self.execute(
            f"CREATE VIEW {name} AS SELECT {first_rows}[file_index::BIGINT + 1] + file_row_number AS row, * "
            f"FROM read_parquet([{paths}])"
        )

    def drop(self, name: str) -> None:
        """Remove a table, or the view of an artifact."""
        (row,) = self.rows("SELECT table_type FROM information_schema.tables WHERE table_name = ?", name)
        self.execute(f"DROP {'VIEW' if row['table_type'] == 'VIEW' else 'TABLE'} {name}")

    def execute(self, statement: str) -> None:
        """Run a statement that has no result."""
        self._wait(lambda: self._connection.execute(statement).fetchall())

    def rows(self, query: str, *parameters: object) -> Iterator[dict[str, Any]]:
        """Return the rows of a query's result as mappings, with one batch in memory."""
        for batch in self.batches(query, *parameters):
            yield from batch.to_pylist()

    def batches(self, query: str, *parameters: object) -> Iterator[pa.RecordBatch]:
        """Return the result of a query in batches of rows; the parameters replace each `?` of the query."""
        with contextlib.closing(self._connection.cursor()) as cursor:  # a connection has one open result at a time
            result = cursor.sql(query, params=parameters)  # is run when it is read
            reader = self._wait(lambda: result.to_arrow_reader(ROWS_PER_BATCH), cursor.interrupt)
            while (batch := self._wait(lambda: next(reader, None), cursor.interrupt)) is not None:
                yield batch

    def _wait(self, work: Callable[[], T], interrupt: Callable[[], None] | None = None) -> T:
        """Return what `work` returns, which the worker's thread calls; `interrupt` ends it early.

        In the main thread DuckDB would run the handlers of signals itself and raise an error of its own in place of
        theirs, so that Ctrl-C and SIGTERM would look like a failed query.
        """
        query = _Query(work)
        try:
            return self._worker.submit(query.run).result()
        except BaseException:
            query.stop(interrupt or self._connection.interrupt)
            raise


class _Query(Generic[T]):
    """Work of the worker's thread, which the main thread can end at any time."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._is_stopped = work, False
        self._has_begun, self._has_ended = threading.Event(), threading.Event()

    def run(self) -> T:
        """Return what the work returns; it does not begin if the query was stopped before."""
        self._has_begun.set()
        try:
            if self._is_stopped:
                raise CancelledError
            return self._work()
        finally:
            self._has_ended.set()

    def stop(self, interrupt: Callable[[], None]) -> None:
        """Return once the work has ended, or will not begin.

        It is interrupted again and again, since DuckDB does not hear what comes before a query's first step.
        """
        self._is_stopped = True  # before the question below: `run` asks in the opposite order
        while self._has_begun.is_set() and not self._has_ended.is_set():
            interrupt()
            self._has_ended.wait(SECONDS_BETWEEN_INTERRUPTIONS)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
