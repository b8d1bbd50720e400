"""Read the files of the SMART system, in which the University of Glasgow keeps test collections of the 1960s to 1980s.

A record begins with `.I` and a number. The lines after `.T` are its title, those after `.W` its text; other fields
(authors, bibliography, links) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage.conversions.beir_files import relevant, write_json_lines, write_qrels

FIELD = re.compile(r"\.([A-Z])(?:\s+(\d+))?\s*")


class SmartRecord(NamedTuple):
    """A document or a query."""

    number: str
    title: str
    text: str


def records(content: bytes) -> Iterator[SmartRecord]:
    """Yield the records of a file, with single blanks between words."""
    number, field = None, ""
    lines: dict[str, list[str]] = {}
    for line in content.decode("latin-1").splitlines():
        match = FIELD.fullmatch(line)
        if match and match[1] == "I" and match[2]:
            if number is not None:
                yield _record(number, lines)
            number, field, lines = str(int(match[2])), "I", {}
        elif match and not match[2]:
            field = match[1]
        else:
            lines.setdefault(field, []).append(line)
    if number is not None:
        yield _record(number, lines)


def _record(number: str, lines: dict[str, list[str]]) -> SmartRecord:
    title, text = (" ".join(" ".join(lines.get(field, [])).split()) for field in "TW")
    return SmartRecord(number, title, text)


def write_collection(folder: Path, documents: bytes, queries: bytes, pairs: list[tuple[str, str]]) -> None:
    """Write documents with a text, all queries, and pairs of a query's place in its file and a document's number.

    Queries get the number of their place, from 1, as the judgements name them. All judgements are the split `dev`.
    """
    kept = [record for record in records(documents) if record.text]
    numbers = {record.number for record in kept}
    write_json_lines(folder / "corpus.jsonl.gz", (
        {"_id": record.number, "title": record.title, "text": record.text} for record in kept
    ))  # fmt: skip
    write_json_lines(folder / "queries.jsonl.gz", (
        {"_id": str(place), "text": record.text} for place, record in enumerate(records(queries), 1)
    ))  # fmt: skip
    write_qrels(folder / "qrels/dev.tsv", (relevant(*pair) for pair in dict.fromkeys(pairs) if pair[1] in numbers))
