"""Reading and writing the rows of a table as Parquet: streamed, checked against the schema, whole files only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.batched import portions
from storage.files import writing
from storage.tables import Table

ROWS_PER_GROUP = 10_000  # what is held in memory at a time,
CHARACTERS_PER_GROUP = 50_000_000  # or fewer, where texts are long


def write_rows(out: Path, table: type[Table], rows: Iterable[Mapping[str, Any]], name: str = "part-00000") -> int:
    """Write rows to `out/name.parquet` as they come and return how many; the file appears when it is whole."""
    schema = _schema(table)
    groups = portions(rows, size=_characters, limit=CHARACTERS_PER_GROUP, number=ROWS_PER_GROUP)
    blocks = (pa.Table.from_pylist([dict(row) for row in group], schema=schema) for group in groups)
    return write_blocks(out, table, blocks, name)


def write_blocks(out: Path, table: type[Table], blocks: Iterable[pa.Table], name: str = "part-00000") -> int:
    """Write Arrow tables to `out/name.parquet` as they come and return how many rows they have; each is a group."""
    schema, count = _schema(table), 0
    with writing(out / f"{name}.parquet") as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for block in blocks:
            writer.write_table(_checked(block, table))
            count += len(block)
    return count


def write_table(out: Path, table: type[Table], rows: pa.Table, name: str = "part-00000") -> None:
    """Write an Arrow table to `out/name.parquet`; the file appears when it is whole."""
    with writing(out / f"{name}.parquet") as temporary:
        pq.write_table(_checked(rows, table), temporary)


def parts(folder: Path) -> list[Path]:
    """The Parquet files of a table's folder, in the order of its rows."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def read_table(artifact: Artifact[Any], table: type[Table], columns: Sequence[str] | None = None) -> pa.Table:
    """All rows, in order. For tables that fit in memory; `read_rows` streams."""
    schema = _schema(table) if columns is None else pa.schema([_schema(table).field(name) for name in columns])
    found = [_whole(path, schema.names) for path in parts(artifact.path)]
    return pa.concat_tables(found).cast(schema) if found else schema.empty_table()


def _whole(path: Path, columns: Sequence[str]) -> pa.Table:
    """A file's rows; `pq.read_table` takes three times as long where there are many groups."""
    with pq.ParquetFile(path) as file:
        return file.read(columns=list(columns)).select(list(columns))


def in_one_piece(rows: pa.Table) -> pa.Table:
    """The same with each column in one chunk, to take single rows of.

    Of several chunks `take` joins all before it takes, each time; and a column of strings holds 2 GiB at most, which
    the texts of a large collection exceed: they become large strings.
    """
    wide = [field.with_type(pa.large_string()) if field.name == "text" else field for field in rows.schema]
    return rows.cast(pa.schema(wide)).combine_chunks()


def rows_at(artifact: Artifact[Any], table: type[Table], places: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """The rows with these numbers, in their order; only the groups that hold some are read."""
    schema, first = pa.schema([_schema(table).field(name) for name in columns]), 0
    wanted = np.asarray(places, np.int64)
    found, where = [schema.empty_table()], [np.empty(0, np.int64)]
    for path in parts(artifact.path):
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                last = first + file.metadata.row_group(number).num_rows
                here = np.flatnonzero((wanted >= first) & (wanted < last))
                if len(here):
                    group = file.read_row_group(number, columns=list(columns)).select(columns).cast(schema)
                    found.append(group.take(wanted[here] - first))
                    where.append(here)
                first = last
    return pa.concat_tables(found).take(np.argsort(np.concatenate(where)))


def read_blocks(path: Path, table: type[Table], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of one of a table's files as Arrow tables, in order, with one in memory; all columns, or some."""
    schema = _schema(table)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, columns=columns or schema.names):
            yield pa.Table.from_batches([batch]).select(columns or schema.names)


def read_rows(
    artifact: Artifact[Any], table: type[Table], first: int = 0, last: int | None = None
) -> Iterator[dict[str, Any]]:
    """Rows one by one, in order, with one record batch in memory; from row `first` up to `last`, or all.

    Only the groups that hold some of them are read.
    """
    names, start, paths = _schema(table).names, 0, parts(artifact.path)
    for path, count in zip(paths, _row_counts(tuple(paths), artifact.path.stat().st_mtime_ns), strict=True):
        low, high = max(first - start, 0), min(count if last is None else last - start, count)
        start += count
        if low < high:
            yield from _rows_of(path, names, low, high)


def _rows_of(path: Path, names: Sequence[str], low: int, high: int) -> Iterator[dict[str, Any]]:
    """A file's rows from `low` up to `high`."""
    with pq.ParquetFile(path) as file:
        ends = np.cumsum([file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)])
        groups = range(int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high)) + 1)
        start = int(ends[groups[0] - 1]) if groups[0] else 0
        for group in groups:  # a batch of several groups may be more than fits into memory
            for batch in file.iter_batches(batch_size=ROWS_PER_GROUP, row_groups=[group], columns=names):
                yield from batch.slice(max(low - start, 0), max(high - max(low, start), 0)).to_pylist()
                start += batch.num_rows


@lru_cache(maxsize=8)
def _row_counts(paths: tuple[Path, ...], changed: int) -> list[int]:
    """How many rows each file has: counted again when their folder has changed, not for each shard of a stage."""
    return [pq.read_metadata(path).num_rows for path in paths]


def num_rows(folder: Path) -> int:
    """How many rows a table's folder holds, read from the files' footers."""
    return sum(pq.read_metadata(path).num_rows for path in parts(folder))


def _characters(row: Mapping[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str))


def _schema(table: type[Table]) -> pa.Schema:
    if table.schema is None:
        raise TypeError(f"{table.__name__} is a folder of its own format, not rows")
    return table.schema


def _checked(rows: pa.Table, table: type[Table]) -> pa.Table:
    """The columns of the table, which have no null but where they may."""
    schema = _schema(table)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise ValueError(f"{table.__name__}.{field.name} has a null, which its schema does not allow")
    return rows.select(schema.names).cast(schema)
