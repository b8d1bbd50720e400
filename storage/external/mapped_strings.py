"""Strings in files that are read as memory maps: the two buffers of an Arrow array, written block by block."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.artifact import Artifact
from storage.rows import table_blocks
from storage.tables import Passages, passage_text


class StringWriter:
    """Writes strings to a new folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.count, self._bytes = 0, 0
        self._offsets, self._data = (folder / "offsets").open("wb"), (folder / "data").open("wb")

    def __enter__(self) -> StringWriter:
        self._offsets.write(np.zeros(1, np.int64).tobytes())
        return self

    def __exit__(self, *error: object) -> None:
        self._offsets.close()
        self._data.close()

    def write(self, strings: pa.Array) -> None:
        """Append strings."""
        strings = strings.cast(pa.large_string())
        _, offsets, data = strings.buffers()
        if not len(strings):
            return
        ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
        self._offsets.write((ends[1:] - ends[0] + self._bytes).tobytes())
        self._data.write(memoryview(data)[ends[0] : ends[-1]] if data else b"")
        self.count, self._bytes = self.count + len(strings), self._bytes + int(ends[-1] - ends[0])


def mapped_strings(folder: Path) -> pa.Array:
    """Return the strings of a folder, which are read when they are used."""
    offsets = mapped_numbers(folder / "offsets", np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(mapped_numbers(folder / "data", np.uint8))]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def write_numbers(path: Path, blocks: Iterable[NDArray[Any]]) -> None:
    """Write the numbers of all blocks to a file."""
    with path.open("wb") as file:
        for block in blocks:
            file.write(block.tobytes())


def mapped_numbers(path: Path, kind: Any) -> NDArray[Any]:
    """Return the numbers of a file, which are read when they are used."""
    if not path.stat().st_size:  # cannot be mapped
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, kind, "r"))


def write_passage_texts(folder: Path, passages: Artifact[Passages]) -> None:
    """Write the texts of all passages with their titles, as models read them, to a new folder."""
    with StringWriter(folder) as texts:
        for block in table_blocks(passages.path, Passages, ["title", "text"]):
            rows = zip(block["title"].to_pylist(), block["text"].to_pylist(), strict=True)
            texts.write(pa.array([passage_text(*row) for row in rows], pa.large_string()))
