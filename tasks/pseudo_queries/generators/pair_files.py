"""Pairs of a passage and a query: read from a file, and split so that no passage is on both sides.

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

    They are in memory, since a step needs pairs from anywhere in the file.
    """

    passages: list[str] = field(default_factory=list)
    """Different passages in the order of their hashes, so that the first n are a random sample."""
    queries: list[tuple[int, str]] = field(default_factory=list)
    """The index of a passage and one of its queries, in the order of the file."""

    def pairs(self, numbers: Iterable[int]) -> list[Pair]:
        """Return passage and query of the pairs with these numbers."""
        return [(self.passages[passage], query) for passage, query in (self.queries[number] for number in numbers)]


def pairs_source(path: Path) -> Source:
    """Return a file of pairs as a source with a content hash; raise UserError if it is missing or of another kind."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of pairs, TSV (passage<TAB>query) or JSON lines, found no file")
    _kind(path)
    return source_of(path, [path])


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file, the query on one line; raise UserError with the line number if one is broken."""
    rows = _json_lines(path) if _kind(path) in JSON_LINES else _tsv(path)
    for where, pair in rows:
        for name, text in zip(HEADER, pair, strict=True):
            if not text.strip():
                raise UserError(f"{where}: the {name} is empty; expected text, or leave the line out")
        yield pair[0], " ".join(pair[1].split())


def split(path: Path, share: float) -> tuple[Side, Side]:
    """Return the pairs to train on and the held-out pairs: about a share of the passages by their hashes, at least one.

    Passages that differ only in white space are one passage. Raises UserError if no pair is left to train on.
    """
    texts: dict[bytes, str] = {}
    pairs: list[tuple[bytes, str]] = []
    for passage, query in read_pairs(path):
        digest = hashlib.sha256(" ".join(passage.split()).encode()).digest()
        texts.setdefault(digest, passage)
        pairs.append((digest, query))
    if len(texts) < 2:
        raise UserError(f"{path}: expected pairs of at least two different passages, found {len(texts)}")
    order = sorted(texts)
    held = max(1, sum(int.from_bytes(digest[:8], "big") < share * 2**64 for digest in order))
    if held == len(order):
        raise UserError(f"{path}: all {held} passages would be held out, none trained on; lower the share ({share})")
    index_of = {digest: number for part in (order[held:], order[:held]) for number, digest in enumerate(part)}
    held_digests = set(order[:held])
    train, held_out = (Side([texts[digest] for digest in part]) for part in (order[held:], order[:held]))
    for digest, query in pairs:
        (held_out if digest in held_digests else train).queries.append((index_of[digest], query))
    return train, held_out


def _kind(path: Path) -> str:
    """Return the suffix that states the format of a file, without .gz."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in (*TSV, *JSON_LINES):
        suffixes = ", ".join((*TSV, *JSON_LINES))
        raise UserError(f"{path}: expected a file of pairs whose name ends in {suffixes}, optionally followed by .gz")
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
