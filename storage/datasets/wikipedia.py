"""Wikipedia's articles as text for pre-training (CC BY-SA), in the given folder or below it.

*.parquet with `id`, `title` and `text`, as in Hugging Face's `wikimedia/wikipedia`; otherwise wiki_* with JSON lines
of the same fields, as WikiExtractor writes them (`--json`). Articles without text, which WikiExtractor leaves for
redirects, are omitted. Files are read in the order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.datasets.support.joined_texts import no_topics, text_files
from storage.formats.ids import Unique, checked_id
from storage.formats.lines import read_json_lines, text_field
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.rows import read_foreign_parquet

FETCH = (
    "`pretrieve fetch wikipedia DIR` fetches it (https://huggingface.co/datasets/wikimedia/wikipedia, 20231101.en); or "
    "extract a dump by WikiExtractor"
)
COLUMNS = ("id", "title", "text")


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the files of articles, for "corpus" and for "documents"."""
    return text_files(path, part, "wikipedia", ("*.parquet", "wiki_*"), FETCH)


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the articles that have text."""
    paths, seen = files(path, name, None), Unique()
    for where, row in _rows(paths):
        doc_id = checked_id(text_field(row, "id", where), where)
        seen.add(doc_id)
        title, text = text_field(row, "title", where), text_field(row, "text", where)
        if text.strip():
            yield {"doc_id": doc_id, "title": title, "text": text}
    seen.check(lambda: ((where, row["id"]) for where, row in _rows(paths)))


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "wikipedia")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "wikipedia")


def _rows(paths: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in paths:
        yield from read_foreign_parquet(file, COLUMNS) if file.suffix == ".parquet" else read_json_lines(file)
