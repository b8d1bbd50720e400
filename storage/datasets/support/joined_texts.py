"""Collections of texts that are pre-trained on and have no queries, alone and several as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NoReturn, cast

from storage.datasets import Reader
from storage.errors import UserError
from storage.formats.records import TextRow


def no_topics(path: Path, reader: str) -> NoReturn:
    """Say that there is nothing but texts."""
    raise UserError(
        f"{path}: {reader} has texts alone; name it in the recipe's corpora.pretrain_from, and as dataset a collection "
        "with queries"
    )


class Joined:
    """The reader of several collections as one, each in the folder of its name: its methods are those of `Reader`."""

    def __init__(self, name: str, readers: Mapping[str, ModuleType]) -> None:
        self._name = name
        self._readers = {folder: cast(Reader, one) for folder, one in readers.items()}
        self.fetch = f"lay there a folder for each of {', '.join(readers)}, whose readers say where to fetch them"

    def files(self, path: Path, part: str, split: str | None) -> list[Path]:
        """The files of all, whatever the texts are called."""
        if part not in ("corpus", "documents"):
            no_topics(path, self._name)
        return [file for folder, one in self._readers.items() for file in one.files(path / folder, "corpus", None)]

    def texts(self, path: Path, name: str) -> Iterator[TextRow]:
        """The texts of one after those of the other, with ids that say whose they are."""
        for folder, one in self._readers.items():
            for row in one.texts(path / folder, "corpus"):
                yield {**row, "doc_id": f"{folder}-{row['doc_id']}"}

    def topics(self, path: Path, split: str) -> NoReturn:
        """None: raises UserError."""
        no_topics(path, self._name)
