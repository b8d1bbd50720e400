"""Dataset loaders: one module per data set. The module's name is `dataset.reader` in recipes.

A loader is a module with the four functions of `DatasetLoader`. `path` is what the recipe's `dataset.path` resolves to;
`part` is "corpus" (what is retrieved), "documents" (longer source texts, where a collection has them), "queries" or
"qrels"; `split` names a split of the topics and is None for texts. A loader streams, keeps the collection's order, and
raises `UserError` with the file and row for everything that a user can fix: a missing file, a malformed row, a
duplicate id, an empty query. A loader may also have:

- `NUM_ROWS`, the number of rows of the complete collection by (part, split), for plans without the data and to notice
  truncated files; `CHECKSUMS`, the md5 of official files by name; `FETCH`, where to get the collection;
- `RELEVANT_FROM`, by split the lowest grade that counts as relevant, where that is not 1;
- `IGNORE_IDENTICAL_IDS`, whether a document with the query's own id is the query itself and must not be retrieved;
- the functions of `AnswerLoader`, and `UNJUDGED`, the splits that have answers and no qrels: a passage that contains an
  answer is relevant there;
- `version(path)`, raised where the loader reads other texts from the same files than before; it is part of the keys of
  these texts, and 1 for a loader without this function;
- `has_titles(path, name)`, whether its texts have titles, where that may differ; `TITLES_FROM`, where titles come from
  that are a file of their own, with {folder} for the collection's.

To add a data set, add a module here; `tests/storage/datasets/test_contract.py` checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from storage.errors import UserError
from storage.formats.records import AnswerRow, QrelRow, QueryRow, TextRow


class DatasetLoader(Protocol):
    """The functions of a module in this folder."""

    def files(self, path: Path, part: str, split: str | None) -> list[Path]:
        """Return the files that a part is read from. Their contents are the identity of the artifact.

        "queries" of a split needs its qrels too, since only judged queries are kept.
        """

    def texts(self, path: Path, name: str) -> Iterator[TextRow]:
        """Yield the rows of "corpus" or "documents". A row without title and text becomes no passage."""

    def queries(self, path: Path, split: str) -> Iterator[QueryRow]:
        """Yield the queries of a split, possibly with others that its qrels do not name."""

    def qrels(self, path: Path, split: str) -> Iterator[QrelRow]:
        """Yield the judgements of a split. No pair of query and document occurs twice."""


class AnswerLoader(Protocol):
    """The additional functions of a loader with answers. Its `files` knows the part "answers"."""

    def has_answers(self, path: Path, split: str) -> bool:
        """Return whether the queries of a split have answers."""

    def answers(self, path: Path, split: str) -> Iterator[AnswerRow]:
        """Yield the answers to a split's queries, at least one each, possibly to other queries too."""


def dataset_names() -> list[str]:
    """Return the names of all data sets."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))


def dataset_loader(name: str) -> DatasetLoader:
    """Return the loader of a data set. Raises UserError for an unknown name."""
    if name not in dataset_names():
        raise UserError(f"dataset.reader: there is no dataset loader {name!r}; known are {', '.join(dataset_names())}")
    return cast(DatasetLoader, import_module(f"{__name__}.{name}"))


def num_rows(name: str, part: str, split: str | None = None) -> int | None:
    """Return the number of rows of a part in the complete collection, or None where it is not known."""
    known: dict[tuple[str, str | None], int] = getattr(dataset_loader(name), "NUM_ROWS", {})
    return known.get((part, split))


def relevant_from(name: str, split: str) -> int:
    """Return the lowest grade of a split that counts as relevant."""
    grades: dict[str, int] = getattr(dataset_loader(name), "RELEVANT_FROM", {})
    return grades.get(split, 1)


def ignores_identical_ids(name: str) -> bool:
    """Return whether a document with the query's own id is the query itself."""
    return bool(getattr(dataset_loader(name), "IGNORE_IDENTICAL_IDS", False))


def has_qrels(name: str, split: str) -> bool:
    """Return whether a split has relevance judgements. Otherwise a passage that contains an answer is relevant."""
    return split not in getattr(dataset_loader(name), "UNJUDGED", ())


def answer_loader(name: str) -> AnswerLoader | None:
    """Return the loader of a data set with answers, or None for a data set without."""
    loader = dataset_loader(name)
    return cast(AnswerLoader, loader) if hasattr(loader, "answers") else None


def has_titles(name: str, path: Path, texts: str) -> bool:
    """Return whether texts have titles. A loader without this function has the titles that are in its files."""
    function = getattr(dataset_loader(name), "has_titles", None)
    return True if function is None else bool(function(path, texts))


def version(name: str, path: Path) -> int:
    """Return the version of what a loader reads from the texts at a path."""
    function = getattr(dataset_loader(name), "version", None)
    return 1 if function is None else int(function(path))


def titles_from(name: str, path: Path) -> str:
    """Return what a user can do about texts without titles."""
    text: str = getattr(dataset_loader(name), "TITLES_FROM", "put them there")
    return text.format(folder=path)
