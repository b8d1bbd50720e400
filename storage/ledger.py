"""What a generator has written, by the text it was written for: no query is written twice.

    STORE/ledger/<key>/made_by.json                     what the key is the hash of
    STORE/ledger/<key>/<first>-<last>-<hash>.parquet    rows of `Written`, of the buckets first to last
    STORE/ledger/<key>/replaced-<number>.json           which texts have been given up, and how often

A text belongs to one of 256 buckets by the first two digits of its sha256, so a document that comes or goes moves no
other. Files are only added, whole, and named by a hash of their bytes; whoever adds holds the buckets' lock.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifact import Source, key_of
from storage.files import sha256_of, write_atomically
from storage.tables import Written

BUCKETS = 256
FOLDER = "ledger"
DIGITS = 16
FILE = re.compile(rf"([0-9a-f]{{2}})-([0-9a-f]{{2}})-([0-9a-f]{{{DIGITS}}})\.parquet")
MERGED_AT = 16  # files of the same buckets: reading so many small ones costs more than writing one


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
    def of(root: Path, version: int, generator: str, settings: Mapping[str, Any]) -> Ledger:
        """That of a generator's reference and all settings that decide a text, in the store at `root`.

        `version` is that of the code that writes.
        """
        return Ledger(root / FOLDER / key_of(FOLDER, version, settings, {"generator": generator}))

    def describe(self, made_by: Mapping[str, Any]) -> None:
        """Write down once what the key stands for."""
        if not (self.folder / "made_by.json").exists():
            write_atomically(self.folder / "made_by.json", json.dumps(made_by, indent=1, ensure_ascii=False))

    def rows(self, first: int, last: int) -> pa.Table:
        """What the buckets first to last hold, by text, draw and rank; each of these once.

        A file whose bytes are not those of its name is moved to `damaged/`: its queries are missing then.
        """
        within = hashes_within(first, last)
        tables = [pq.read_table(path, filters=within) for path in self._files(first, last)]
        rows = pa.concat_tables([Written.schema.empty_table(), *(each.cast(Written.schema) for each in tables)])
        return _once(rows)

    def add(self, first: int, last: int, rows: pa.Table) -> None:
        """Add rows of `Written`, for texts of the buckets first to last."""
        self._write(first, last, _once(rows))

    def merge(self, first: int, last: int) -> None:
        """Make one file of the many that nightly additions leave for these very buckets."""
        paths = [path for path in self._files(first, last) if _span(path) == (first, last)]
        if len(paths) >= MERGED_AT:
            kept = self._write(first, last, _once(pa.concat_tables([pq.read_table(path) for path in paths])))
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
        if not (numbers := self._replacements()):
            return None
        return Source(sha256_of(numbers[-1])[:DIGITS], numbers[-1])

    def replace(self, more: Replaced) -> Source:
        """Give up some texts' queries once more than before. What was written of them stays, and is used no more."""
        before, numbers = Replaced.read(self.replaced()), self._replacements()
        number = 1 + (int(numbers[-1].stem.rpartition("-")[2]) if numbers else 0)
        path = self.folder / f"replaced-{number:05d}.json"
        write_atomically(path, before.plus(more).as_json())
        return Source(sha256_of(path)[:DIGITS], path)

    def _replacements(self) -> list[Path]:
        return sorted(self.folder.glob("replaced-*.json"))


@dataclass(frozen=True)
class Replaced:
    """How often the queries of texts have been given up: of all, of buckets, and of single texts."""

    all: int = 0
    buckets: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def read(source: Source | None) -> Replaced:
        """What a ledger says (`Ledger.replaced`)."""
        return Replaced() if source is None else Replaced(**json.loads(source.path.read_text()))

    def draw(self, sha256: str) -> int:
        """Which draw a text's queries are to be of: 0 where they have never been replaced."""
        return self.all + self.buckets.get(sha256[:2], 0) + self.texts.get(sha256, 0)

    def plus(self, more: Replaced) -> Replaced:
        """Both."""
        buckets, texts = Counter(self.buckets) + Counter(more.buckets), Counter(self.texts) + Counter(more.texts)
        return Replaced(self.all + more.all, dict(sorted(buckets.items())), dict(sorted(texts.items())))

    def as_json(self) -> str:
        """As `read` reads it."""
        return json.dumps({"all": self.all, "buckets": self.buckets, "texts": self.texts}, indent=0)


def ledgers(root: Path) -> list[Ledger]:
    """All ledgers of the store at `root`."""
    return [Ledger(folder) for folder in sorted((root / FOLDER).glob("*/"))]


def is_damaged(path: Path) -> bool:
    """Whether a ledger's file is not what its name says."""
    return sha256_of(path)[:DIGITS] != path.stem.rpartition("-")[2]


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
