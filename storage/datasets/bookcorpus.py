"""BookCorpus as text for pre-training (Zhu et al. 2015), in the given folder or below it.

*.parquet with `text`, one sentence a row, as in Hugging Face's `bookcorpus`; otherwise books_large_p*.txt with one
sentence a line, plain or gzipped. Neither marks where a book ends, so every 1,000 consecutive sentences, one a line,
are a document, numbered from 0. Files are read in the order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from storage.datasets.support.joined_texts import no_topics, text_files
from storage.formats.lines import read_lines, text_field
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.rows import read_foreign_parquet

FETCH = "`pretrieve fetch bookcorpus DIR` fetches it (https://huggingface.co/datasets/bookcorpus/bookcorpus)"
SENTENCES_PER_DOCUMENT = 1_000  # about 30 passages of 512 WordPiece tokens, so few are short because a document ends


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the files of sentences, for "corpus" and for "documents"."""
    return text_files(path, part, "bookcorpus", ("*.parquet", "books_large_p*.txt*"), FETCH)


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield documents of consecutive sentences."""
    sentences = chain.from_iterable(_sentences(file) for file in files(path, name, None))
    number = 0
    while document := list(islice(sentences, SENTENCES_PER_DOCUMENT)):
        yield {"doc_id": str(number), "title": "", "text": "\n".join(document)}
        number += 1


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "bookcorpus")


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Raise UserError: the collection has texts only."""
    no_topics(path, "bookcorpus")


def has_titles(path: Path, name: str) -> bool:
    """Return False: the texts have no titles."""
    return False


def _sentences(file: Path) -> Iterator[str]:
    if file.suffix == ".parquet":
        rows = (text_field(row, "text", where) for where, row in read_foreign_parquet(file, ["text"]))
    else:
        rows = (text for _, text in read_lines(file))
    return (sentence for row in rows if (sentence := row.strip()))
