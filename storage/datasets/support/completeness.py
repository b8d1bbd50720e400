"""Checks that a collection is complete: its known number of rows, and the checksums of official files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from storage import datasets
from storage.errors import UserError

UNFINISHED = ".fetching"  # the folder of downloads that are not complete; it is removed when all are
FIX = "fetch it again, or read it as it is with dataset.complete=false"


def check_count(reader: str, path: Path, part: str, split: str | None, count: int) -> None:
    """Raise UserError for a part with another number of rows than the complete collection."""
    expected = datasets.num_rows(reader, part, split)
    if expected is not None and count != expected:
        of_split = f" of split {split}" if split else ""
        raise UserError(f"{path}: the {part}{of_split} has {count:,} rows; {reader} has {expected:,}: {FIX}")


def check_files(reader: str, files: Iterable[Path]) -> None:
    """Raise UserError for a file with another checksum than the official file of its name."""
    known: dict[str, str] = getattr(datasets.dataset_loader(reader), "CHECKSUMS", {})
    for file in files:
        if (expected := known.get(file.name)) and (actual := md5(file)) != expected:
            raise UserError(f"{file}: its md5 is {actual}, that of the official file {expected}: {FIX}")


def md5(path: Path) -> str:
    """Return a file's md5 in hexadecimal. Publishers of collections give no better checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
