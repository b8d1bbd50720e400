"""Collections of texts that are pre-trained on and have no queries, alone and several as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NoReturn, cast

from storage.datasets import Reader, TextRow
from storage.errors import UserError


def no_topics(path: Path, reader: str) -> NoReturn:
    """Say that there is nothing but texts."""
    raise UserError(
        f"{path}: {reader} has texts alone; name it in the recipe's corpora.pretrain_from, and as dataset a collection "
        "with queries"
    )


def joined_files(path: Path, part: str, reader: str, readers: Mapping[str, ModuleType]) -> list[Path]:
    """The files of several collections, each in the folder of its name, for the reader that joins them."""
    if part not in ("corpus", "documents"):
        no_topics(path, reader)
    return [file for folder, one in readers.items() for file in cast(Reader, one).files(path / folder, "corpus", None)]


def joined_texts(path: Path, readers: Mapping[str, ModuleType]) -> Iterator[TextRow]:
    """Their texts, one collection after the other, with ids that say whose they are."""
    for folder, one in readers.items():
        for row in cast(Reader, one).texts(path / folder, "corpus"):
            yield {**row, "doc_id": f"{folder}-{row['doc_id']}"}
