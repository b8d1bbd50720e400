"""Collections of texts for pre-training, without queries: a single one, and several read as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn, cast

from storage.datasets import DatasetLoader
from storage.datasets.support.completeness import UNFINISHED
from storage.errors import UserError
from storage.formats.records import TextRow


def no_topics(path: Path, reader: str) -> NoReturn:
    """Raise UserError: the collection has texts only."""
    raise UserError(
        f"{path}: the loader {reader} has no queries; use it for `pretrieve queries build`, or name it in the recipe's "
        "corpora.pretrain_from, and as dataset a collection with queries"
    )


class JoinedTexts:
    """The loader of several collections as one, each in the folder of its name, with `DatasetLoader`'s functions."""

    def __init__(self, name: str, loaders: Mapping[str, ModuleType]) -> None:
        self._name = name
        self._loaders = {folder: cast(DatasetLoader, loader) for folder, loader in loaders.items()}
        self.fetch = f"`pretrieve fetch {name} DIR` fetches the folders {', '.join(loaders)}"
        self.titles_from = next((titles for loader in loaders.values() if (titles := _titles_from(loader))), "")
        self._titled = {folder: loader for folder, loader in loaders.items() if _titles_from(loader)}

    def files(self, path: Path, part: str, split: str | None) -> list[Path]:
        """Return the files of all collections, for "corpus" and for "documents"."""
        check_complete_texts(path, part, self._name)
        return [
            file for folder, loader in self._loaders.items() for file in loader.files(path / folder, "corpus", None)
        ]

    def texts(self, path: Path, name: str) -> Iterator[TextRow]:
        """Yield the texts of one collection after the other, their ids prefixed by the collection's name."""
        for folder, loader in self._loaders.items():
            for row in loader.texts(path / folder, "corpus"):
                yield {**row, "doc_id": f"{folder}-{row['doc_id']}"}

    def has_titles(self, path: Path, name: str) -> bool:
        """Return whether every collection has its titles whose titles are files of their own."""
        return all(loader.has_titles(path / folder, "corpus") for folder, loader in self._titled.items())

    def topics(self, path: Path, split: str) -> NoReturn:
        """Raise UserError: the collections have texts only."""
        no_topics(path, self._name)


def text_files(path: Path, part: str, reader: str, patterns: Sequence[str], advice: str) -> list[Path]:
    """Return the sorted files, in a folder or below it, of the first pattern that matches any.

    Raises UserError for another part than texts, for an unfinished download, and with `advice` if there is no file.
    """
    check_complete_texts(path, part, reader)
    for pattern in patterns:
        if present := sorted(file for file in path.rglob(pattern) if file.is_file()):
            return present
    raise UserError(f"{path}: no {' and no '.join(patterns)} there or below; {advice}")


def check_complete_texts(path: Path, part: str, reader: str) -> None:
    """Raise UserError for another part than texts, and for an interrupted download, which would be read in part."""
    if part not in ("corpus", "documents"):
        no_topics(path, reader)
    if (path / UNFINISHED).exists():
        raise UserError(
            f"{path}: the download is not finished; run `pretrieve fetch {reader} {path}` again, or remove "
            f"{path / UNFINISHED} to read what is there"
        )


def _titles_from(loader: ModuleType) -> str:
    """Return where a collection's titles come from, where they are a file of their own; else an empty text."""
    return str(getattr(loader, "TITLES_FROM", ""))
