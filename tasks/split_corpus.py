"""Split documents into passages of whole sentences.

Passages depend on their document alone, so they are the same whatever the number of processes that
make them. Documents are read, split and written in batches, and every 50,000 documents become a
file of their own, which a resumed run keeps.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from storage.artifact import Artifact, Source
from storage.errors import UserError
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Documents, Passages
from tasks.progress import bar
from tasks.spans import MIN_TOKENS, Span, count_tokens, spans
from tasks.stage import execution, stage

DOCUMENTS_PER_PART = 50_000
DOCUMENTS_PER_BATCH = 250
DOCUMENTS_PER_WORKER = 10_000  # fewer are split before a process has started
BATCHES_AHEAD = 4  # for each process: keeps it busy, and memory flat

Rows = list[dict[str, Any]]
Split = Callable[[Iterable[Rows]], Iterator[Rows]]


class Splitting(Settings):
    """How documents become passages."""

    max_tokens: Annotated[int, Field(ge=MIN_TOKENS)] | None
    """Word pieces of a passage at most, without special tokens; null keeps documents whole."""
    titles: bool
    """Whether passages carry their document's title; a document without text always does."""
    language: str = "en"
    """Whose rules and abbreviations end a sentence (an ISO 639 code)."""


@stage(version=1, table=Passages)
def split_corpus(out: Path, documents: Artifact[Documents], tokenizer: Source, *, settings: Splitting) -> None:
    """Write every passage of every document, in order; ids are DOCUMENT#0, #1, ..., or DOCUMENT where kept whole."""
    total = num_rows(documents.path)
    work = partial(split_documents, tokenizer=str(tokenizer.path / "tokenizer.json"), settings=settings)
    work([])  # what is wrong with the tokenizer shows here, not in a process
    workers = min(execution().workers, total // DOCUMENTS_PER_WORKER)
    with bar(what="splitting documents", unit="documents", total=total) as done, _mapping(work, workers) as split:
        batches = _batches(read_rows(documents, Documents), done.update)
        for first in range(0, total, DOCUMENTS_PER_PART):
            part = islice(batches, DOCUMENTS_PER_PART // DOCUMENTS_PER_BATCH)
            name = f"part-{first // DOCUMENTS_PER_PART:05d}"
            if (out / f"{name}.parquet").exists():
                deque(part, maxlen=0)
            else:
                write_rows(out, Passages, chain.from_iterable(split(part)), name=name)


def split_documents(documents: Rows, *, tokenizer: str, settings: Splitting) -> Rows:
    """The passages of some documents. Each passage's text is characters [start, end) of its document's."""
    pieces, limit = load_tokenizer(tokenizer), settings.max_tokens
    texts = [document["text"] for document in documents]
    if limit is None:
        counts = count_tokens(texts, pieces)
        split: Iterable[list[Span]] = ([Span(0, len(text), n)] for text, n in zip(texts, counts, strict=True))
    else:
        split = spans(texts, pieces, max_tokens=limit, language=settings.language)
    return [
        {
            "passage_id": document["doc_id"] if limit is None else f"{document['doc_id']}#{i}",
            "doc_id": document["doc_id"],
            "title": document["title"] if settings.titles or not span.num_tokens else "",
            "text": document["text"][span.start : span.end],
            "start": span.start,
            "end": span.end,
            "num_tokens": span.num_tokens,
        }
        for document, found in zip(documents, split, strict=True)
        for i, span in enumerate(found)
    ]


@lru_cache(maxsize=1)
def load_tokenizer(file: str) -> Tokenizer:
    """A WordPiece tokenizer that neither cuts nor pads, whatever its file says."""
    if not Path(file).is_file():
        raise UserError(f"{file}: no such file; splitting needs the checkpoint's tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    if not isinstance(tokenizer.model, WordPiece):
        raise UserError(f"{file}: expected a WordPiece tokenizer, found {type(tokenizer.model).__name__}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _batches(rows: Iterator[dict[str, Any]], count: Callable[[int], Any]) -> Iterator[Rows]:
    while batch := list(islice(rows, DOCUMENTS_PER_BATCH)):
        yield batch
        count(len(batch))


@contextmanager
def _mapping(work: Callable[[Rows], Rows], workers: int) -> Iterator[Split]:
    """A function that maps batches in order: in this process, or in a pool that is there for the block."""
    if workers < 2:
        yield partial(map, work)
        return
    # Started afresh, since a fork would copy threads' locks; it must not outlive a parent that is killed.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        yield partial(_in_order, pool, work, ahead=BATCHES_AHEAD * workers)


def _in_order(
    pool: ProcessPoolExecutor, work: Callable[[Rows], Rows], batches: Iterable[Rows], *, ahead: int
) -> Iterator[Rows]:
    """Results in the order of the batches, of which at most `ahead` are out at a time."""
    waiting: deque[Future[Rows]] = deque()
    for batch in batches:
        waiting.append(pool.submit(work, batch))
        if len(waiting) == ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _begin_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)
