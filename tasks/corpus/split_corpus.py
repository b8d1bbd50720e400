"""Split documents into passages of complete sentences.

Passages depend only on their document, so the number of processes has no effect. A shard is 10,000 documents and
becomes one file; a process holds a batch of them in memory, or one longer document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Tokenizer

from models.token_texts import mark
from storage.artifact import Artifact, Source
from storage.batched import portions
from storage.errors import UserError
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.tables import Documents, Passages, Vocabulary, passage_text
from tasks.corpus.sentence_packing import MIN_TOKENS, Blanks, Span, beginning, count_tokens, spans
from tasks.runtime.shard import ShardJob, ShardTask, part, row_shards
from tasks.runtime.shards import run_shards
from tasks.stage import stage

TOKENIZER = "tokenizer.json"
DOCUMENTS_PER_PART = 10_000  # splitting fewer takes less time than starting a process
CHARACTERS_PER_BATCH = 1_000_000

TokenizerFile = Artifact[Vocabulary] | Source
"""The folder of a tokenizer.json: of a reduced vocabulary, or of a model outside the store."""


Limit = Annotated[int, Field(ge=MIN_TOKENS)]


class Splitting(Settings):
    """The settings of the split of documents into passages."""

    max_tokens: Limit | None
    """The largest number of tokens of a passage, without special tokens; null keeps complete documents."""
    titles: bool
    """Whether passages carry their document's title, in addition to max_tokens; a document without text always does."""
    language: str = "en"
    """The language whose rules and abbreviations end a sentence (an ISO 639 code)."""


class SplittingWithTitles(Settings):
    """The settings of the split into passages that include the title: `max_tokens` counts title and text."""

    max_tokens: Limit
    titles: Literal["once", "every"]
    """Whether the title begins the document, so that the first passage has it, or every passage."""
    language: str


@stage(version=3, table=Passages)
def split_corpus(
    out: Path, documents: Artifact[Documents], tokenizer: TokenizerFile, *, settings: Splitting | SplittingWithTitles
) -> None:
    """Write every passage of every document, in order; ids are DOCUMENT#0, #1, ..., or DOCUMENT if it is not split.

    A document with neither title nor text has none.
    """
    load_tokenizer(str(tokenizer.path / TOKENIZER))  # a broken file is refused here, before a process is started
    job = ShardJob(split_part, out, (documents, tokenizer), settings, what="splitting documents", unit="documents")
    run_shards(job, row_shards(num_rows(documents.path), DOCUMENTS_PER_PART))


def split_part(
    task: ShardTask,
    documents: Artifact[Documents],
    tokenizer: TokenizerFile,
    *,
    settings: Splitting | SplittingWithTitles,
) -> None:
    """Write the passages of a shard's documents."""
    file, rows = str(tokenizer.path / TOKENIZER), read_rows(documents, Documents, *task.shard.of)

    def passages() -> Iterator[dict[str, Any]]:
        for batch in portions(rows, size=lambda row: len(row["text"]), limit=CHARACTERS_PER_BATCH):
            yield from split_documents(batch, tokenizer=file, settings=settings)
            task.done(len(batch))

    write_rows(task.out, Passages, passages(), part(task.shard.number))


def split_documents(
    documents: list[dict[str, Any]], *, tokenizer: str, settings: Splitting | SplittingWithTitles
) -> list[dict[str, Any]]:
    """Return the passages of documents; the text of each is characters [start, end) of the text that is split."""
    documents = [document for document in documents if document["title"].strip() or document["text"].strip()]
    pieces, limit = load_tokenizer(tokenizer), settings.max_tokens
    if settings.titles == "once":
        documents = [{**row, "title": "", "text": passage_text(row["title"], row["text"])} for row in documents]
    texts = [document["text"] for document in documents]
    if limit is None:
        counts = count_tokens(texts, pieces)
        split: Iterable[list[Span]] = ([Span(0, len(text), n)] for text, n in zip(texts, counts, strict=True))
    else:
        limits = [limit] * len(texts)
        if settings.titles == "every":
            documents = [{**row, "title": title_that_fits(row, pieces, limit)} for row in documents]
            lengths = count_tokens([document["title"] for document in documents], pieces)
            limits = [limit - length for length in lengths]
        split = spans(texts, pieces, limits=limits, language=settings.language)
    return [
        {
            "passage_id": document["doc_id"] if limit is None else f"{document['doc_id']}#{i}",
            "doc_id": document["doc_id"],
            "title": document["title"] if settings.titles or _is_blank(document, span) else "",
            "text": document["text"][span.start : span.end],
            "start": span.start,
            "end": span.end,
            "num_tokens": span.num_tokens,
        }
        for document, spans_of_document in zip(documents, split, strict=True)
        for i, span in enumerate(spans_of_document)
    ]


def _is_blank(document: Mapping[str, Any], span: Span) -> bool:
    """Return whether a passage has no text; of some tokenizers a blank is a token."""
    return not span.num_tokens or not document["text"][span.start : span.end].strip()


def title_that_fits(document: Mapping[str, Any], tokenizer: Tokenizer, max_tokens: int) -> str:
    """Return the title, or its first words: it may fill half of a passage, and all of one without text."""
    return beginning(document["title"], tokenizer, max_tokens // 2 if document["text"].strip() else max_tokens)


@lru_cache(maxsize=1)
def load_tokenizer(file: str) -> Tokenizer:
    """Return a tokenizer without truncation, padding and special tokens, whatever its file configures."""
    if not Path(file).is_file():
        raise UserError(f"{file}: no such file; splitting needs the checkpoint's tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception itself
        raise UserError(f"{file}: the tokenizer cannot be loaded ({error}); save the model's fast tokenizer") from None
    try:
        mark(tokenizer)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None  # that of RoBERTa would leave out blanks in the offsets of tokens
    if " " not in Blanks.of(tokenizer).ends:
        raise UserError(
            f"{file}: expected a tokenizer whose tokens end at blanks, as those of BERT do; use another model"
        )
    return tokenizer
