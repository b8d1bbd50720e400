"""Wikipedia's articles as text to pre-train on (CC BY-SA), in the folder that is named or below it.

*.parquet with `id`, `title` and `text`, as Hugging Face's `wikimedia/wikipedia` has them; or else wiki_* with JSON
lines of the same, as WikiExtractor writes them of a dump (`--json`). Articles without text, as WikiExtractor leaves of
redirects, are left out. Files are read by the order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.datasets.support.joined_texts import no_topics
from storage.errors import UserError
from storage.formats.ids import Unique, checked_id
from storage.formats.lines import read_json_lines, text_field
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.rows import read_foreign_parquet

FETCH = "fetch https://huggingface.co/datasets/wikimedia/wikipedia (20231101.en), or extract a dump by WikiExtractor"
COLUMNS = ("id", "title", "text")


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The files of articles, whatever the texts are called."""
    if part not in ("corpus", "documents"):
        no_topics(path, "wikipedia")
    for pattern in ("*.parquet", "wiki_*"):
        if found := sorted(file for file in path.rglob(pattern) if file.is_file()):
            return found
    raise UserError(f"{path}: no *.parquet and no wiki_* there or below; {FETCH}")


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """The articles that have text."""
    found, seen = files(path, name, None), Unique()
    for where, row in _rows(found):
        doc_id = checked_id(text_field(row, "id", where), where)
        seen.add(doc_id)
        title, text = text_field(row, "title", where), text_field(row, "text", where)
        if text.strip():
            yield {"doc_id": doc_id, "title": title, "text": text}
    seen.check(lambda: ((where, row["id"]) for where, row in _rows(found)))


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """None: raises UserError."""
    no_topics(path, "wikipedia")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """None: raises UserError."""
    no_topics(path, "wikipedia")


def _rows(found: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in found:
        yield from read_foreign_parquet(file, COLUMNS) if file.suffix == ".parquet" else read_json_lines(file)
