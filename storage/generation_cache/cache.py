"""The generation cache: generated queries by the text of their passage, so that no query is generated twice.

    STORE/ledger/<key>/made_by.json                     the values that the key is the hash of
    STORE/ledger/<key>/<first>-<last>-<hash>.parquet    rows of `GeneratedQueries`, of the buckets first to last
    STORE/ledger/<key>/replaced-<number>-<hash>.json    which texts' queries are invalidated, and how often

A text belongs to one of 256 buckets by the first two digits of its sha256, so an added or removed document moves no
other. Files are only added, atomically, and named by a hash of their bytes. A process that adds files holds the lock of
their buckets.
"""

from __future__ import annotations

import contextlib
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
from storage.generation_cache.invalidations import DIGITS, Invalidations
from storage.tables import GeneratedQueries

BUCKETS = 256
FOLDER = "ledger"
FILE = re.compile(rf"([0-9a-f]{{2}})-([0-9a-f]{{2}})-([0-9a-f]{{{DIGITS}}})\.parquet")
MADE_BY = "made_by.json"
MERGED_AT = 16  # small files: reading that many costs more than writing one
SMALL = 32 * 2**20  # bytes


def hashes_within(first: int, last: int, digits: int = 2) -> list[tuple[str, str, str]]:
    """Return Parquet filters on the column passage_sha256 for hashes whose first digits are first to last.

    Two digits are those of a bucket.
    """
    end = f"{last + 1:0{digits}x}" if last + 1 < 16**digits else "g"  # no digit comes after f
    return [("passage_sha256", ">=", f"{first:0{digits}x}"), ("passage_sha256", "<", end)]


class GenerationCache:
    """The cache of one generator with one set of settings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder.name

    @staticmethod
    def of(root: Path, made_by: Mapping[str, Any]) -> GenerationCache:
        """Return the cache in the store at `root` for the code's `version`, the `generator` and the `settings`."""
        return GenerationCache(root / FOLDER / _key(made_by))

    def describe(self, made_by: Mapping[str, Any]) -> None:
        """Write the values that the key is the hash of, once."""
        if not (self.folder / MADE_BY).exists():
            write_atomically(self.folder / MADE_BY, json.dumps(made_by, indent=1, ensure_ascii=False))

    def rows(self, first: int, last: int, texts: pa.Array | None = None) -> pa.Table:
        """Return the queries of the buckets first to last, of some texts or of all, by text, draw and rank, each once.

        A file whose bytes do not match the hash in its name is moved to `damaged/`. Its queries are missing then.
        """
        wanted = pq.filters_to_expression(hashes_within(first, last))
        if texts is not None:
            wanted = wanted & pc.field("passage_sha256").isin(texts)
        tables = [pq.read_table(path, filters=wanted) for path in self._files(first, last)]
        rows = pa.concat_tables(
            [GeneratedQueries.schema.empty_table(), *(table.cast(GeneratedQueries.schema) for table in tables)]
        )
        return _distinct(rows)

    def read_unlocked(self, columns: list[str]) -> Iterator[pa.Table]:
        """Yield columns of each intact file to a process without the lock; rows can repeat.

        Another process may merge files meanwhile. The rows of a deleted file are in a newer one, which is read, too.
        """
        seen: set[str] = set()
        while new := [path for path in self.files() if path.name not in seen]:
            for path in new:
                seen.add(path.name)
                try:
                    table = None if is_damaged(path) else pq.read_table(path, columns=columns)
                except FileNotFoundError:
                    continue
                if table is not None:
                    yield table

    def add(self, first: int, last: int, rows: pa.Table) -> None:
        """Add rows of `GeneratedQueries` for texts of the buckets first to last."""
        self._write(first, last, _distinct(rows))

    def merge(self, first: int, last: int) -> None:
        """Merge the small files within these buckets where there are many, as after many small additions."""
        small = [path for path in self._files(first, last) if path.stat().st_size < SMALL]
        small = [path for path in small if first <= _span(path)[0] and _span(path)[1] <= last]
        if len(small) < MERGED_AT:
            return
        for paths in portions(small, size=lambda path: path.stat().st_size, limit=SMALL):
            spans = [_span(path) for path in paths]
            rows = _distinct(pa.concat_tables([pq.read_table(path) for path in paths]))
            kept = self._write(min(low for low, _ in spans), max(high for _, high in spans), rows)
            for path in paths:  # until they are deleted, the same rows are in two files and are read once
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
        """Yield the intact files with rows of these buckets, ordered by name, and quarantine damaged ones."""
        for path in self.files():
            low, high = _span(path)
            if low <= last and high >= first:
                if is_damaged(path):
                    self.quarantine(path)
                else:
                    yield path

    def quarantine(self, path: Path) -> Path:
        """Move a damaged file to `damaged/`. Its queries are generated again when they are needed."""
        quarantined = self.folder / "damaged" / path.name
        quarantined.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process has moved it
            os.replace(path, quarantined)
        return quarantined

    def files(self) -> list[Path]:
        """Return all files of rows."""
        return sorted(path for path in self.folder.glob("*.parquet") if FILE.fullmatch(path.name))

    def invalidated(self) -> Source | None:
        """Return the file that says which texts' queries are invalidated, or None where there is none."""
        paths = self.invalidation_files()
        return Source(paths[-1].stem.rpartition("-")[2], paths[-1]) if paths else None

    def invalidate(self, more: Invalidations) -> Source:
        """Invalidate the queries of some texts once more. Those that were generated stay and are no longer used."""
        content = Invalidations.read(self.invalidated()).plus(more).as_json(more).encode()
        digest = hashlib.sha256(content).hexdigest()[:DIGITS]
        number = 1 + (int(paths[-1].stem.split("-")[1]) if (paths := self.invalidation_files()) else 0)
        path = self.folder / f"replaced-{number:05d}-{digest}.json"
        write_atomically(path, content)
        return Source(digest, path)

    def invalidation_files(self) -> list[Path]:
        """Return the files of invalidations, the newest last. It has the sum of all."""
        return sorted(self.folder.glob("replaced-*.json"))


def generation_caches(root: Path) -> list[GenerationCache]:
    """Return all generation caches of the store at `root`."""
    return [GenerationCache(folder) for folder in sorted((root / FOLDER).glob("*/"))]


def is_damaged(path: Path) -> bool:
    """Return whether a file's bytes do not match the hash in its name. A file that a merge deleted is not damaged."""
    try:
        return sha256_of(path)[:DIGITS] != path.stem.rpartition("-")[2]
    except FileNotFoundError:
        return False


def _key(made_by: Mapping[str, Any]) -> str:
    return key_of(FOLDER, made_by["version"], made_by["settings"], {"generator": made_by["generator"]})


def _span(path: Path) -> tuple[int, int]:
    first, last, _ = path.stem.split("-")
    return int(first, 16), int(last, 16)


def _distinct(rows: pa.Table) -> pa.Table:
    """Return the rows sorted, one for each text, draw and rank. Only a lost lease can lead to several."""
    by = ["passage_sha256", "draw", "rank"]
    rows = rows.sort_by([(name, "ascending") for name in by])
    if len(rows) < 2:
        return rows
    columns = [rows[name].combine_chunks() for name in by]
    same = [pc.equal(column[1:], column[:-1]) for column in columns]
    again = pc.and_(pc.and_(same[0], same[1]), same[2])
    return rows.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))
