"""Fixed-size records sorted out by a 64-bit hash: how tables are joined and counted that are larger than the memory.

What does not fit into one buffer goes into 256 files by the first byte of the hash, and these are read one after the
other. Two of a hundred million texts have the same hash with odds of 1 in 4,000.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUFFERED = 2**16  # records
FILES = 256

Records = NDArray[Any]


def hash_of_text(text: str) -> int:
    """64 bits of its BLAKE2b."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Sorted:
    """Records of one NumPy `dtype`, by its field `by`, which holds hashes.

    `folder` is scratch: what lies there, of a run that was killed, is deleted.
    """

    def __init__(self, folder: Path, dtype: list[tuple[str, str]], by: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder, self._dtype, self._by = folder, np.dtype(dtype), by
        self._buffer: list[Any] = []
        self._spilt = False

    def add(self, *values: int) -> None:
        """One more record, by the order of the fields."""
        self._buffer.append(values)
        if len(self._buffer) == BUFFERED:
            self._spill(self._buffered())
            self._buffer.clear()

    def extend(self, records: Records) -> None:
        """Many more."""
        if self._spilt or len(records) + len(self._buffer) > BUFFERED:
            self._spill(records)
        else:
            self._buffer += records.tolist()

    def groups(self) -> Iterator[Records]:
        """All records, those of one hash in one array, the arrays rising with the hash; the records as they came."""
        if not self._spilt:
            yield self._buffered()
            return
        self._spill(self._buffered())
        self._buffer.clear()
        for path in sorted(self._folder.iterdir()):
            yield np.fromfile(path, self._dtype)
            path.unlink()

    def _buffered(self) -> Records:
        return np.array(self._buffer, self._dtype)

    def _spill(self, records: Records) -> None:
        self._spilt = True
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = (records[self._by] >> np.uint64(56)).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=FILES))
        for number, found in enumerate(np.split(records[order], ends[:-1])):
            if len(found):
                with (self._folder / f"{number:03d}").open("ab") as file:
                    found.tofile(file)


class Distinct:
    """Counts the different texts among many."""

    def __init__(self, folder: Path) -> None:
        self._hashes = Sorted(folder, [("hash", "u8")], by="hash")

    def add(self, hashed: int) -> None:
        """One more text, by its hash."""
        self._hashes.add(hashed)

    def count(self) -> int:
        """How many there were; ask once."""
        return sum(len(np.unique(group)) for group in self._hashes.groups())
