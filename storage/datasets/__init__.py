"""Readers of collections: one file per data set, and the file's name is its name in recipes.

A reader is a module with the four functions of `Reader`. `path` is what `dataset.path` of the recipe
leads to; `part` is "corpus" (what is retrieved), "documents" (longer source texts, where a collection
has them), "queries" or "qrels"; `split` names a split of the topics and is None for texts.
A reader streams, keeps the collection's order, and raises `UserError` with the file and row for
everything a user can mend: a missing file, a malformed row, an id that stands twice, an empty text.
A reader may also say `NUM_ROWS`, how many rows the whole collection has by (part, split), for plans where it is not
here, and `FETCH`, where it is to be had.
To add a data set, add a file here; `tests/storage/datasets/test_contract.py` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypedDict, cast

from storage.errors import UserError


class TextRow(TypedDict):
    doc_id: str
    title: str
    text: str


class QueryRow(TypedDict):
    query_id: str
    text: str


class QrelRow(TypedDict):
    query_id: str
    doc_id: str
    grade: int


class Reader(Protocol):
    """What a file of this folder holds."""

    def files(self, path: Path, part: str, split: str | None) -> list[Path]:
        """The files that reading a part needs, so that an artifact is known by those and no others.

        "queries" of a split need its qrels too, since only judged queries are kept.
        """

    def texts(self, path: Path, name: str) -> Iterator[TextRow]:
        """The rows of "corpus" or "documents"; title may be empty, title and text together never are."""

    def queries(self, path: Path, split: str) -> Iterator[QueryRow]:
        """The queries of a split, perhaps among others that its qrels do not name."""

    def qrels(self, path: Path, split: str) -> Iterator[QrelRow]:
        """The judgements of a split; no pair of query and document stands twice."""


def names() -> list[str]:
    """The data sets that can be read."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))


def reader(name: str) -> Reader:
    """The reader called `name`."""
    if name not in names():
        raise UserError(f"dataset.reader: there is no reader {name!r}; known are {', '.join(names())}")
    return cast(Reader, import_module(f"{__name__}.{name}"))
