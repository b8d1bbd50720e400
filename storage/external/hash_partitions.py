"""Rows scattered over piles on disk, so that a join has one pile in memory at a time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa


class Piles:
    """Files of rows, written in a `with` block and read after it; each keeps the order in which rows came."""

    def __init__(self, folder: Path, schema: pa.Schema, number: int) -> None:
        folder.mkdir(parents=True)
        self._paths = [folder / f"{pile:05d}.arrow" for pile in range(number)]
        self._schema, self._open = schema, contextlib.ExitStack()
        self._writers = [self._open.enter_context(pa.ipc.new_stream(str(path), schema)) for path in self._paths]

    def __enter__(self) -> Piles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, rows: pa.Table, piles: np.ndarray[Any, Any]) -> None:
        """Put each row on its pile."""
        order = piles.argsort(kind="stable")
        ordered, numbers = rows.take(order), piles[order]
        found, starts = np.unique(numbers, return_index=True)
        ends = np.append(starts, len(numbers))[1:]
        for pile, start, end in zip(found, starts, ends, strict=True):
            self._writers[pile].write_table(ordered.slice(start, end - start))

    def read(self, pile: int) -> pa.Table:
        """All rows of a pile."""
        with pa.OSFile(str(self._paths[pile])) as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all()
