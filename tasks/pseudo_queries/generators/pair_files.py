"""Own pairs of a passage and a query: read from a file, and split so that no passage is on both sides.

A file is TSV, `passage<TAB>query` with or without these names as its first line, or JSON lines with the fields
`passage` and `query`; plain or gzipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storage.artifact import Source, source_of
from storage.errors import UserError
from storage.formats.lines import read_json_lines, read_lines, text_field

TSV, JSON_LINES = (".tsv", ".txt"), (".jsonl", ".json", ".ndjson")
HEADER = ["passage", "query"]
EXPECTED = "expected passage<TAB>query"

Pair = tuple[str, str]


@dataclass
class Side:
    """The pairs that are trained on, or those that are held out.

    In memory, since a step draws its pairs from anywhere.
    """

    passages: list[str] = field(default_factory=list)
    """Different ones, in the order of their hashes: any first of them are a fair draw."""
    written: list[tuple[int, str]] = field(default_factory=list)
    """The place of a passage and one of its queries, in the order of the file."""

    def pairs(self, numbers: Iterable[int]) -> list[Pair]:
        """Passage and query of the pairs with these numbers."""
        return [(self.passages[place], query) for place, query in (self.written[number] for number in numbers)]


def pairs_source(path: Path) -> Source:
    """A file of pairs, known by its contents. Raises `UserError` where it is not there or of another kind."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of pairs, TSV (passage<TAB>query) or JSON lines, found no file")
    _kind(path)
    return source_of(path, [path])


def read_pairs(path: Path) -> Iterator[Pair]:
    """Every pair of a file: the passage as it stands, the query in one line. Raises `UserError`, naming the line."""
    rows = _json_lines(path) if _kind(path) in JSON_LINES else _tsv(path)
    for where, pair in rows:
        for name, text in zip(HEADER, pair, strict=True):
            if not text.strip():
                raise UserError(f"{where}: the {name} is empty; expected text, or leave the line out")
        yield pair[0], " ".join(pair[1].split())


def split(path: Path, share: float) -> tuple[Side, Side]:
    """The pairs to train on and those held out: about a share of the passages, one at least, chosen by their hashes.

    Passages that differ in white space alone are one. Raises `UserError` where nothing would be left to train on.
    """
    texts: dict[bytes, str] = {}
    found: list[tuple[bytes, str]] = []
    for passage, query in read_pairs(path):
        digest = hashlib.sha256(" ".join(passage.split()).encode()).digest()
        texts.setdefault(digest, passage)
        found.append((digest, query))
    if len(texts) < 2:
        raise UserError(f"{path}: expected pairs of two different passages or more, found {len(texts)}")
    order = sorted(texts)
    held = max(1, sum(int.from_bytes(digest[:8], "big") < share * 2**64 for digest in order))
    if held == len(order):
        raise UserError(f"{path}: all {held} passages would be held out, none trained on; lower the share ({share})")
    places = {digest: (number < held, number - (0 if number < held else held)) for number, digest in enumerate(order)}
    train, held_out = (Side([texts[digest] for digest in part]) for part in (order[held:], order[:held]))
    for digest, query in found:
        is_held, place = places[digest]
        (held_out if is_held else train).written.append((place, query))
    return train, held_out


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, without .gz."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in (*TSV, *JSON_LINES):
        known = ", ".join((*TSV, *JSON_LINES))
        raise UserError(f"{path}: expected a file of pairs whose name ends in {known}, or in these with .gz")
    return kind


def _tsv(path: Path) -> Iterator[tuple[str, Pair]]:
    for number, (where, line) in enumerate(read_lines(path)):
        columns = line.split("\t")
        if number == 0 and [name.strip().lower() for name in columns] == HEADER:
            continue
        if len(columns) != len(HEADER):
            raise UserError(f"{where}: {EXPECTED}, two columns, found {len(columns)}")
        yield where, (columns[0], columns[1])


def _json_lines(path: Path) -> Iterator[tuple[str, Pair]]:
    for where, row in read_json_lines(path):
        yield where, (text_field(row, "passage", where), text_field(row, "query", where))
