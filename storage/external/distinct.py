"""Counting the different values among more of them than fit into memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.external.database import Database

BUFFERED = 2**16  # values that are inserted at once
SCHEMA = pa.schema([("hash", pa.uint64())])


class Distinct:
    """Counts different texts by their hashes of 64 bits, in a table of its own.

    Two of a hundred million texts have the same hash with odds of 1 in 4,000.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database, self._table, self._buffer = database, table, list[int]()
        database.create(table, SCHEMA)

    def add(self, hashed: int) -> None:
        """Add a text by its hash."""
        self._buffer.append(hashed)
        if len(self._buffer) == BUFFERED:
            self._insert()

    def count(self) -> int:
        """Return the number of different texts so far."""
        self._insert()
        (row,) = self._database.rows(f"SELECT count(DISTINCT hash) AS hashes FROM {self._table}")
        return int(row["hashes"])

    def _insert(self) -> None:
        self._database.insert(self._table, pa.table([np.array(self._buffer, np.uint64)], schema=SCHEMA))
        self._buffer.clear()
