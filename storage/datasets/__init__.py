"""Readers of collections: one file per data set, and the file's name is its name in recipes.

A reader is a module with the four functions of `Reader`. `path` is what `dataset.path` of the recipe
leads to; `part` is "corpus" (what is retrieved), "documents" (longer source texts, where a collection
has them), "queries" or "qrels"; `split` names a split of the topics and is None for texts.
A reader streams, keeps the collection's order, and raises `UserError` with the file and row for
everything a user can mend: a missing file, a malformed row, an id that stands twice, an empty query.
A reader may also have:

- `NUM_ROWS`, how many rows the whole collection has by (part, split), for plans where it is not here and to notice
  what was cut off; `CHECKSUMS`, the md5 of official files by name; `FETCH`, where the collection is to be had;
- `RELEVANT_FROM`, by split the lowest grade that counts as relevant, where that is not 1;
- `IGNORE_IDENTICAL_IDS`, whether a document that has the query's own id is the query itself and is not to be found;
- the functions of `Answered`, and `UNJUDGED`, the splits that have answers and no qrels: there a passage that has an
  answer is relevant;
- `titled(path, name)`, whether its texts have titles, where that may differ.

To add a data set, add a file here; `tests/storage/datasets/test_contract.py` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from storage.errors import UserError
from storage.formats.records import AnswerRow, QrelRow, QueryRow, TextRow


class Reader(Protocol):
    """What a file of this folder holds."""

    def files(self, path: Path, part: str, split: str | None) -> list[Path]:
        """The files that reading a part needs, so that an artifact is known by those and no others.

        "queries" of a split need its qrels too, since only judged queries are kept.
        """

    def texts(self, path: Path, name: str) -> Iterator[TextRow]:
        """The rows of "corpus" or "documents"; one whose title and text are both empty becomes no passage."""

    def queries(self, path: Path, split: str) -> Iterator[QueryRow]:
        """The queries of a split, perhaps among others that its qrels do not name."""

    def qrels(self, path: Path, split: str) -> Iterator[QrelRow]:
        """The judgements of a split; no pair of query and document stands twice."""


class Answered(Protocol):
    """What a reader with answers has besides; its `files` know the part "answers"."""

    def has_answers(self, path: Path, split: str) -> bool:
        """Whether a split's queries have answers."""

    def answers(self, path: Path, split: str) -> Iterator[AnswerRow]:
        """The answers of a split's queries, perhaps of others too; each has one at least."""


def names() -> list[str]:
    """The data sets that can be read."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))


def reader(name: str) -> Reader:
    """The reader called `name`."""
    if name not in names():
        raise UserError(f"dataset.reader: there is no reader {name!r}; known are {', '.join(names())}")
    return cast(Reader, import_module(f"{__name__}.{name}"))


def num_rows(name: str, part: str, split: str | None = None) -> int | None:
    """How many rows of a part the whole collection has; None where nobody says."""
    known: dict[tuple[str, str | None], int] = getattr(reader(name), "NUM_ROWS", {})
    return known.get((part, split))


def relevant_from(name: str, split: str) -> int:
    """The lowest grade of a split that counts as relevant."""
    grades: dict[str, int] = getattr(reader(name), "RELEVANT_FROM", {})
    return grades.get(split, 1)


def ignores_identical_ids(name: str) -> bool:
    """Whether a document with the query's own id is the query itself."""
    return bool(getattr(reader(name), "IGNORE_IDENTICAL_IDS", False))


def has_qrels(name: str, split: str) -> bool:
    """Whether a split's documents are judged; else a passage that has an answer is relevant."""
    return split not in getattr(reader(name), "UNJUDGED", ())


def answered(name: str) -> Answered | None:
    """The reader as one that has answers; None for one that has none."""
    found = reader(name)
    return cast(Answered, found) if hasattr(found, "answers") else None


def titled(name: str, path: Path, texts: str) -> bool:
    """Whether texts have titles: a reader that does not say has whatever its files have."""
    found = getattr(reader(name), "titled", None)
    return True if found is None else bool(found(path, texts))
