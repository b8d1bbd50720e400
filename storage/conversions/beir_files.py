"""Write the files of a collection in BEIR's layout, and divide its topics by their SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from storage.datasets import beir
from storage.files import write_atomically, writing
from storage.formats.records import QrelRow, QueryRow, TextRow


def write_json_lines(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write one JSON object per line, gzipped without name and time, so that equal rows are equal bytes."""
    with (
        writing(file) as temporary,
        temporary.open("wb") as target,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=target, mtime=0) as compressed,
    ):
        for row in rows:
            compressed.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())


def write_qrels(file: Path, rows: Iterable[QrelRow]) -> None:
    """Write judgements below BEIR's header."""
    lines = (f"{row['query_id']}\t{row['doc_id']}\t{row['grade']}\n" for row in rows)
    write_atomically(file, "\t".join(beir.HEADER) + "\n" + "".join(lines))


def text_line(row: TextRow) -> dict[str, str]:
    """Return a document or passage as a line of corpus.jsonl."""
    return {"_id": row["doc_id"], "title": row["title"], "text": row["text"]}


def query_line(row: QueryRow) -> dict[str, str]:
    """Return a query as a line of queries.jsonl."""
    return {"_id": row["query_id"], "text": row["text"]}


def relevant(query_id: str, doc_id: str) -> QrelRow:
    """Return the judgement that a document is relevant."""
    return {"query_id": query_id, "doc_id": doc_id, "grade": 1}


def per_mille(name: str) -> int:
    """Return a number from 0 to 999 for a name: its SHA-256 modulo 1,000."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 1000
