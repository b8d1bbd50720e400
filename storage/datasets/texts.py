"""Texts of any of the forms that `pretrieve adapt` reads, without queries: to generate pseudo-queries, or to pre-train.

A file of JSON lines, CSV, TSV or Parquet with a column of texts, a folder of .txt, .md and .html files, or a folder in
BEIR's layout (`storage.datasets.support.collection_files`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage.datasets.support import collection_files
from storage.datasets.support.joined_texts import check_complete_texts, no_topics
from storage.formats.records import QrelRow, QueryRow, TextRow

FETCH = "name a file of JSON lines, CSV, TSV or Parquet, or a folder of texts"


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the files of texts, for "corpus" and for "documents"."""
    check_complete_texts(path, part, "texts")
    return collection_files.files(path)


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the documents in the order of the collection."""
    return collection_files.read_documents(path)


def version(path: Path) -> int:
    """Return the version of how a form is read, which is 1 for the forms that have always been read in the same way."""
    return collection_files.VERSIONS.get(collection_files.kind(path), 1)


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "texts")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "texts")
