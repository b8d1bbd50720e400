"""BookCorpus as text to pre-train on (Zhu et al. 2015), in the folder that is named or below it.

*.parquet with `text`, a sentence a row, as Hugging Face's `bookcorpus` has it; or else books_large_p*.txt with a
sentence a line, plain or gzipped. Neither says where a book ends, so every 1,000 consecutive sentences, a line each,
are a document, which is named by its place from 0. Files are read by the order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from storage.datasets.support.joined_texts import no_topics
from storage.errors import UserError
from storage.formats.lines import read_lines, text_field
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.rows import read_foreign_parquet

FETCH = "fetch https://huggingface.co/datasets/bookcorpus"
SENTENCES_PER_DOCUMENT = 1_000  # some 30 passages of 512 word pieces, so that few are short because a document ends


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The files of sentences, whatever the texts are called."""
    if part not in ("corpus", "documents"):
        no_topics(path, "bookcorpus")
    for pattern in ("*.parquet", "books_large_p*.txt*"):
        if found := sorted(file for file in path.rglob(pattern) if file.is_file()):
            return found
    raise UserError(f"{path}: no *.parquet and no books_large_p*.txt there or below; {FETCH}")


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Documents of consecutive sentences."""
    sentences = chain.from_iterable(_sentences(file) for file in files(path, name, None))
    number = 0
    while some := list(islice(sentences, SENTENCES_PER_DOCUMENT)):
        yield {"doc_id": str(number), "title": "", "text": "\n".join(some)}
        number += 1


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """None: raises UserError."""
    no_topics(path, "bookcorpus")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """None: raises UserError."""
    no_topics(path, "bookcorpus")


def titled(path: Path, name: str) -> bool:
    """They have no titles."""
    return False


def _sentences(file: Path) -> Iterator[str]:
    if file.suffix == ".parquet":
        rows = (text_field(row, "text", where) for where, row in read_foreign_parquet(file, ["text"]))
    else:
        rows = (text for _, text in read_lines(file))
    return (sentence for row in rows if (sentence := row.strip()))
