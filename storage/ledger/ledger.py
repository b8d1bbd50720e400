"""What a generator has written, by the text it was written for: no query is written twice.

    STORE/ledger/<key>/made_by.json                     what the key is the hash of
    STORE/ledger/<key>/<first>-<last>-<hash>.parquet    rows of `Written`, of the buckets first to last
    STORE/ledger/<key>/replaced-<number>-<hash>.json    which texts have been given up, and how often

A text belongs to one of 256 buckets by the first two digits of its sha256, so a document that comes or goes moves no
other. Files are only added, whole, and named by a hash of their bytes; whoever adds holds the buckets' lock.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Source, key_of
from storage.batched import portions
from storage.files import sha256_of, write_atomically
from storage.ledger.regenerations import DIGITS, Replaced
from storage.tables import Written

BUCKETS = 256
FOLDER = "ledger"
FILE = re.compile(rf"([0-9a-f]{{2}})-([0-9a-f]{{2}})-([0-9a-f]{{{DIGITS}}})\.parquet")
MADE_BY = "made_by.json"
MERGED_AT = 16  # small files: reading so many costs more than writing one
SMALL = 32 * 2**20  # bytes


def bucket_of(sha256: str) -> int:
    """A text's bucket."""
    return int(sha256[:2], 16)


def hashes_within(first: int, last: int) -> list[tuple[str, str, str]]:
    """What a column passage_sha256 is to be, for Parquet's readers, in the buckets first to last."""
    end = f"{last + 1:02x}" if last + 1 < BUCKETS else "g"  # no digit comes after f
    return [("passage_sha256", ">=", f"{first:02x}"), ("passage_sha256", "<", end)]


class Ledger:
    """The ledger of one generator with one manner of writing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder.name

    @staticmethod
    def of(root: Path, made_by: Mapping[str, Any]) -> Ledger:
        """In the store at `root`, that of all that decides a text: code's `version`, `generator`, `settings`."""
        return Ledger(root / FOLDER / _key(made_by))

    def describe(self, made_by: Mapping[str, Any]) -> None:
        """Write down once what the key is the hash of."""
        if not (self.folder / MADE_BY).exists():
            write_atomically(self.folder / MADE_BY, json.dumps(made_by, indent=1, ensure_ascii=False))

    def rows(self, first: int, last: int, texts: pa.Array | None = None) -> pa.Table:
        """What the buckets first to last hold, of these texts or of all, by text, draw and rank; each once.

        A file whose bytes are not those of its name is moved to `damaged/`: its queries are missing then.
        """
        wanted = pq.filters_to_expression(hashes_within(first, last))
        if texts is not None:
            wanted = wanted & pc.field("passage_sha256").isin(texts)
        tables = [pq.read_table(path, filters=wanted) for path in self._files(first, last)]
        rows = pa.concat_tables([Written.schema.empty_table(), *(each.cast(Written.schema) for each in tables)])
        return _once(rows)

    def add(self, first: int, last: int, rows: pa.Table) -> None:
        """Add rows of `Written`, for texts of the buckets first to last."""
        self._write(first, last, _once(rows))

    def merge(self, first: int, last: int) -> None:
        """Join the small files that nightly additions leave within these buckets, where they are many."""
        small = [path for path in self._files(first, last) if path.stat().st_size < SMALL]
        small = [path for path in small if first <= _span(path)[0] and _span(path)[1] <= last]
        if len(small) < MERGED_AT:
            return
        for paths in portions(small, size=lambda path: path.stat().st_size, limit=SMALL):
            spans = [_span(path) for path in paths]
            rows = _once(pa.concat_tables([pq.read_table(path) for path in paths]))
            kept = self._write(min(low for low, _ in spans), max(high for _, high in spans), rows)
            for path in paths:  # until they are gone, the same rows stand in two files, and are read once
                if path != kept:
                    path.unlink()

    def _write(self, first: int, last: int, rows: pa.Table) -> Path:
        content = io.BytesIO()
        pq.write_table(rows, content, row_group_size=10_000)
        digest = hashlib.sha256(content.getbuffer()).hexdigest()[:DIGITS]
        path = self.folder / f"{first:02x}-{last:02x}-{digest}.parquet"
        write_atomically(path, content.getvalue())
        return path

    def _files(self, first: int, last: int) -> Iterator[Path]:
        """The files that hold some of these buckets, those that are whole, in the order of their names."""
        for path in self.files():
            low, high = _span(path)
            if low <= last and high >= first:
                if is_damaged(path):
                    self.set_aside(path)
                else:
                    yield path

    def set_aside(self, path: Path) -> Path:
        """Move a damaged file where nobody looks: what it held is written again when it is asked for."""
        aside = self.folder / "damaged" / path.name
        aside.parent.mkdir(exist_ok=True)
        os.replace(path, aside)
        return aside

    def files(self) -> list[Path]:
        """All its files of rows."""
        return sorted(path for path in self.folder.glob("*.parquet") if FILE.fullmatch(path.name))

    def replaced(self) -> Source | None:
        """Which texts have been given up; None where none has."""
        paths = self.replacements()
        return Source(paths[-1].stem.rpartition("-")[2], paths[-1]) if paths else None

    def replace(self, more: Replaced) -> Source:
        """Give up some texts' queries once more than before. What was written of them stays, and is used no more."""
        content = Replaced.read(self.replaced()).plus(more).as_json(more).encode()
        digest = hashlib.sha256(content).hexdigest()[:DIGITS]
        number = 1 + (int(paths[-1].stem.split("-")[1]) if (paths := self.replacements()) else 0)
        path = self.folder / f"replaced-{number:05d}-{digest}.json"
        write_atomically(path, content)
        return Source(digest, path)

    def replacements(self) -> list[Path]:
        """The files that say so, the newest last, which has the sum."""
        return sorted(self.folder.glob("replaced-*.json"))


def ledgers(root: Path) -> list[Ledger]:
    """All ledgers of the store at `root`."""
    return [Ledger(folder) for folder in sorted((root / FOLDER).glob("*/"))]


def is_damaged(path: Path) -> bool:
    """Whether a ledger's file is not what its name says; one that is gone, since others were joined, is not."""
    try:
        return sha256_of(path)[:DIGITS] != path.stem.rpartition("-")[2]
    except FileNotFoundError:
        return False


def _key(made_by: Mapping[str, Any]) -> str:
    return key_of(FOLDER, made_by["version"], made_by["settings"], {"generator": made_by["generator"]})


def _span(path: Path) -> tuple[int, int]:
    first, last, _ = path.stem.split("-")
    return int(first, 16), int(last, 16)


def _once(rows: pa.Table) -> pa.Table:
    """Sorted; of rows for the same text, draw and rank, which only a lost lease can bring about, the first."""
    by = ["passage_sha256", "draw", "rank"]
    rows = rows.sort_by([(name, "ascending") for name in by])
    if len(rows) < 2:
        return rows
    columns = [rows[name].combine_chunks() for name in by]
    same = [pc.equal(column[1:], column[:-1]) for column in columns]
    again = pc.and_(pc.and_(same[0], same[1]), same[2])
    return rows.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))
