"""Wikipedia and BookCorpus as text to pre-train on, as BERT's: the folders `wikipedia` and `bookcorpus`.

Ids are wikipedia-ID and bookcorpus-PLACE; the readers of these names say what the folders hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage.datasets import QrelRow, QueryRow, TextRow, bookcorpus, wikipedia
from storage.pretraining_texts import joined_files, joined_texts, no_topics

READERS = {"wikipedia": wikipedia, "bookcorpus": bookcorpus}
FETCH = "lay there a folder for each of wikipedia, bookcorpus, whose readers say where to fetch them"


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The files of all, whatever the texts are called."""
    return joined_files(path, part, "wikipedia_bookcorpus", READERS)


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """The texts of one after those of the other."""
    return joined_texts(path, READERS)


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """None: raises UserError."""
    no_topics(path, "wikipedia_bookcorpus")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """None: raises UserError."""
    no_topics(path, "wikipedia_bookcorpus")
