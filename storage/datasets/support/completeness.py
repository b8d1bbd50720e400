"""Whether a collection is all there: as many rows as it is known to have, and official files with their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from storage import datasets
from storage.errors import UserError

MEND = "fetch it again, or read it as it is with dataset.complete=false"


def check_count(reader: str, path: Path, part: str, split: str | None, count: int) -> None:
    """Refuse a part with another number of rows than the whole collection is known to have."""
    expected = datasets.num_rows(reader, part, split)
    if expected is not None and count != expected:
        of = f" of split {split}" if split else ""
        raise UserError(f"{path}: the {part}{of} has {count:,} rows; {reader} has {expected:,}: {MEND}")


def check_files(reader: str, files: Iterable[Path]) -> None:
    """Refuse a file that is not what is officially given by that name."""
    known: dict[str, str] = getattr(datasets.reader(reader), "CHECKSUMS", {})
    for file in files:
        if (expected := known.get(file.name)) and (found := md5(file)) != expected:
            raise UserError(f"{file}: its md5 is {found}, that of the official file {expected}: {MEND}")


def md5(path: Path) -> str:
    """Of a file's bytes, in hexadecimal; publishers of collections give no better sum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
