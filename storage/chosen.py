"""The rows of a large table that have one of a few keys, with one block of the table in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.rows import parts, read_blocks
from storage.tables import Table


def blocks_of(
    artifact: Artifact[Any], table: type[Table], key: str, wanted: Iterable[str], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows whose `key` is wanted, in order, with these columns beside the key."""
    keys = pa.array(sorted(set(wanted)), pa.string())
    for path in parts(artifact.path) if len(keys) else []:
        for block in read_blocks(path, table, [key, *columns]):
            yield block.filter(pc.is_in(block[key], keys))


def first_rows(
    artifact: Artifact[Any], table: type[Table], key: str, wanted: Iterable[str], columns: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The first row of each wanted key that the table has, in the table's order."""
    found: dict[str, dict[str, Any]] = {}
    for block in blocks_of(artifact, table, key, wanted, columns):
        for row in block.to_pylist():
            found.setdefault(row[key], row)
    return found
