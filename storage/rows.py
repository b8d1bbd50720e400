"""Read and write the rows of tables as Parquet: streamed, checked against the schema, in complete files only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.batched import portions
from storage.errors import UserError
from storage.files import writing
from storage.tables import Table

ROWS_PER_GROUP = 10_000  # a row group is what is held in memory at a time;
CHARACTERS_PER_GROUP = 50_000_000  # it has fewer rows where texts are long
ROWS_PER_FOREIGN_BATCH = 1_000


def write_rows(out: Path, table: type[Table], rows: Iterable[Mapping[str, Any]], name: str = "part-00000") -> int:
    """Stream rows to `out/name.parquet` and return their number. The file appears when it is complete."""
    schema = schema_of(table)
    groups = portions(rows, size=_characters, limit=CHARACTERS_PER_GROUP, number=ROWS_PER_GROUP)
    blocks = (pa.Table.from_pylist([dict(row) for row in group], schema=schema) for group in groups)
    return write_blocks(out, table, blocks, name)


def write_blocks(out: Path, table: type[Table], blocks: Iterable[pa.Table], name: str = "part-00000") -> int:
    """Stream Arrow tables to `out/name.parquet`, each as a row group, and return the number of rows."""
    schema, count = schema_of(table), 0
    with writing(out / f"{name}.parquet") as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for block in blocks:
            writer.write_table(_checked(block, table))
            count += len(block)
    return count


def write_table(out: Path, table: type[Table], rows: pa.Table, name: str = "part-00000") -> None:
    """Write an Arrow table to `out/name.parquet`. The file appears when it is complete."""
    with writing(out / f"{name}.parquet") as temporary:
        pq.write_table(_checked(rows, table), temporary)


def parts(folder: Path) -> list[Path]:
    """Return the Parquet files of a table's folder, in the order of its rows."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def read_table(artifact: Artifact[Any], table: type[Table], columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows, in order. For tables that fit in memory; `read_rows` streams."""
    schema = schema_of(table) if columns is None else pa.schema([schema_of(table).field(name) for name in columns])
    tables = [_read_file(path, schema.names) for path in parts(artifact.path)]
    return pa.concat_tables(tables).cast(schema) if tables else schema.empty_table()


def _read_file(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return a file's rows. `pq.read_table` takes three times as long for a file of many row groups."""
    with pq.ParquetFile(path) as file:
        return file.read(columns=list(columns)).select(list(columns))


def in_one_chunk(rows: pa.Table) -> pa.Table:
    """Return the table with one chunk a column, for repeated `take`, which otherwise joins all chunks at each call.

    A string column holds at most 2 GiB, which the texts of a large collection exceed: they become large strings.
    """
    wide = [field.with_type(pa.large_string()) if field.name == "text" else field for field in rows.schema]
    return rows.cast(pa.schema(wide)).combine_chunks()


def rows_at(
    artifact: Artifact[Any], table: type[Table], row_numbers: Sequence[int], columns: Sequence[str]
) -> pa.Table:
    """Return the rows with these numbers, in the given order. Only the row groups that have some of them are read."""
    schema, first = pa.schema([schema_of(table).field(name) for name in columns]), 0
    wanted = np.asarray(row_numbers, np.int64)
    blocks, positions = [schema.empty_table()], [np.empty(0, np.int64)]
    for path in parts(artifact.path):
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                last = first + file.metadata.row_group(number).num_rows
                in_group = np.flatnonzero((wanted >= first) & (wanted < last))
                if len(in_group):
                    group = file.read_row_group(number, columns=list(columns)).select(columns).cast(schema)
                    blocks.append(group.take(wanted[in_group] - first))
                    positions.append(in_group)
                first = last
    return pa.concat_tables(blocks).take(np.argsort(np.concatenate(positions)))


def read_blocks(path: Path, table: type[Table], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of one of a table's files as Arrow tables, in order, one in memory; all columns, or some."""
    schema = schema_of(table)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, columns=columns or schema.names):
            yield pa.Table.from_batches([batch]).select(columns or schema.names)


def table_blocks(folder: Path, table: type[Table], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield all rows of a table's folder as Arrow tables, in order, one in memory; all columns, or some."""
    for path in parts(folder):
        yield from read_blocks(path, table, columns)


def blocks_with_keys(
    artifact: Artifact[Any], table: type[Table], key: str, wanted: Iterable[str], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows whose value in the column `key` is wanted, in order, with that column and `columns`."""
    keys = pa.array(sorted(set(wanted)), pa.string())
    for block in table_blocks(artifact.path, table, [key, *columns]) if len(keys) else ():
        yield block.filter(pc.is_in(block[key], keys))


def first_rows(
    artifact: Artifact[Any], table: type[Table], key: str, wanted: Iterable[str], columns: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the first row of each wanted key that the table has, in the table's order."""
    rows: dict[str, dict[str, Any]] = {}
    for block in blocks_with_keys(artifact, table, key, wanted, columns):
        for row in block.to_pylist():
            rows.setdefault(row[key], row)
    return rows


def read_rows(
    artifact: Artifact[Any], table: type[Table], first: int = 0, last: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows from number `first` up to `last`, or all, in order, with one record batch in memory.

    Only the row groups that have some of them are read.
    """
    names, start, paths = schema_of(table).names, 0, parts(artifact.path)
    for path, count in zip(paths, _row_counts(tuple(paths), artifact.path.stat().st_mtime_ns), strict=True):
        low, high = max(first - start, 0), min(count if last is None else last - start, count)
        start += count
        if low < high:
            yield from _rows_of_file(path, names, low, high)


def _rows_of_file(path: Path, names: Sequence[str], low: int, high: int) -> Iterator[dict[str, Any]]:
    """Yield a file's rows from number `low` up to `high`."""
    with pq.ParquetFile(path) as file:
        ends = np.cumsum([file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)])
        groups = range(int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high)) + 1)
        start = int(ends[groups[0] - 1]) if groups[0] else 0
        for group in groups:  # one at a time, since a batch over several groups may exceed the memory
            for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, row_groups=[group], columns=names):
                yield from batch.slice(max(low - start, 0), max(high - max(low, start), 0)).to_pylist()
                start += batch.num_rows


@lru_cache(maxsize=8)
def _row_counts(paths: tuple[Path, ...], changed_ns: int) -> list[int]:
    """Return each file's number of rows, read once for all shards of a stage and again when the folder has changed."""
    return [pq.read_metadata(path).num_rows for path in paths]


def num_rows(folder: Path) -> int:
    """Return the number of rows in a table's folder, read from the files' footers."""
    return sum(pq.read_metadata(path).num_rows for path in parts(folder))


def read_foreign_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("FILE row 17", values of some columns) for each row of another program's file; rows count from 1.

    Raises UserError for a file that lacks a column, is cut off or is something else, and for a value that Python cannot
    have.
    """
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                present = ", ".join(file.schema_arrow.names)
                raise UserError(
                    f"{path}: expected the columns {', '.join(columns)}; {missing[0]} is not among {present}"
                )
            for batch in file.iter_batches(ROWS_PER_FOREIGN_BATCH, columns=list(columns)):
                for row in _python_rows(batch, path, number):
                    number += 1
                    yield f"{path} row {number}", row
    except (pa.ArrowInvalid, OSError) as error:
        after = f"after row {number}" if number else "at its start"
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path}: not a Parquet file, or cut off or damaged {after}; fetch it again ({reason})"
        ) from None


def _python_rows(batch: pa.RecordBatch, path: Path, start: int) -> list[dict[str, Any]]:
    """Return the rows of a batch, of which `start` others are before it in the file."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    except (ValueError, OverflowError):  # text that is not UTF-8, a date after the year 9999: Parquet checks neither
        for number in range(len(batch)):
            for name in batch.schema.names:
                try:
                    batch.column(name)[number].as_py()
                except (ValueError, OverflowError) as error:
                    raise UserError(
                        f"{path} row {start + number + 1}: the column '{name}' is not readable ({error}); expected "
                        "text in UTF-8; convert the column"
                    ) from None
        raise


def _characters(row: Mapping[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str))


def schema_of(table: type[Table]) -> pa.Schema:
    """Return the table's columns. Raises TypeError for a table that is a folder of its own format."""
    if table.schema is None:
        raise TypeError(f"{table.__name__} is a folder of its own format, not rows")
    return table.schema


def _checked(rows: pa.Table, table: type[Table]) -> pa.Table:
    """Return the table's columns. Raises ValueError for a null in a column that allows none."""
    schema = schema_of(table)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise ValueError(f"{table.__name__}.{field.name} has a null, which its schema does not allow")
    return rows.select(schema.names).cast(schema)
