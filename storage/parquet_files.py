"""Rows of Parquet files that others have written, one batch in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.errors import UserError

ROWS_PER_BATCH = 1_000


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Some columns of every row after where it stands: ("FILE row 17", values), from 1.

    Raises UserError for a file that lacks a column, is cut off or is something else.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                there = ", ".join(file.schema_arrow.names)
                raise UserError(f"{path}: expected the columns {', '.join(columns)}; {missing[0]} is not among {there}")
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(columns)):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
    except (pa.ArrowInvalid, OSError) as error:
        after = f"after row {number}" if number else "at its start"
        why = str(error).splitlines()[0]
        raise UserError(f"{path}: not a Parquet file, or cut off or damaged {after}; fetch it again ({why})") from None
