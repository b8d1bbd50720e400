"""Ingest a collection: its texts, and of one split the judged queries, the judgements, and answers where it has some.

A slice of a collection keeps the documents whose id's hash is below `fraction`, and of the topics
those that still have a relevant document; everything stays in the collection's order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.datasets import DatasetLoader, answer_loader, dataset_loader, has_qrels
from storage.datasets.support.completeness import check_count, check_files
from storage.errors import UserError
from storage.formats.ids import in_slice
from storage.formats.records import QueryRow, TextRow
from storage.rows import parts, read_table, write_rows
from storage.settings import Settings
from storage.tables import Answers, Documents, Qrels, Queries
from tasks.runtime.progress import progress
from tasks.session import print_line
from tasks.stage import stage

log = logging.getLogger(__name__)

T = TypeVar("T")

Fraction = Annotated[float, Field(gt=0, lt=1)] | None


class Corpus(Settings):
    """Which texts of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    name: Literal["corpus", "documents"]
    fraction: Fraction
    """Keep documents whose id's hash is below this share of all hashes; null keeps all."""
    complete: bool
    """Expect the official files with as many rows as they have; else whatever lies there is read."""


class Topics(Settings):
    """Which queries and judgements of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    split: str
    fraction: Fraction
    """That of the corpus."""
    complete: bool
    """As of the corpus."""
    relevant_alone: bool
    """Leave out judged queries without a relevant document, which nobody can learn from. In a slice they always are,
    since theirs may lie beyond it; whole splits are measured with them, as trec_eval does."""


@stage(version=2, table=Documents)
def ingest_corpus(out: Path, source: Source, *, settings: Corpus) -> None:
    """Write the documents of the slice, in the collection's order."""
    rows = whole(
        dataset_loader(settings.reader).texts(source.path, settings.name), source, settings, settings.name, None
    )
    kept = (row for row in rows if in_slice(row["doc_id"], settings.fraction))
    if (first := next(kept, None)) is None:
        raise UserError(f"{source.path}: the {settings.name} has no documents{_of_slice(settings.fraction)}")
    empty = Counter[str]()

    def counted() -> Iterator[TextRow]:
        for row in chain([first], kept):
            if not row["title"].strip() and not row["text"].strip():
                empty["documents"] += 1
            yield row

    documents = write_rows(out, Documents, progress(counted(), what="reading documents", unit="documents"))
    if empty["documents"] == documents:
        raise UserError(f"{source.path}: the {settings.name} has no document with a title or a text")
    if empty:
        print_line(
            f"{source.path}: {empty['documents']:,} documents have neither title nor text; nothing will find them"
        )


@stage(version=2, table=Queries)
def ingest_queries(out: Path, source: Source, *, settings: Topics) -> None:
    """Write the split's judged queries, in the collection's order; of a split without qrels, all."""
    collection = dataset_loader(settings.reader)
    if not has_qrels(settings.reader, settings.split):
        rows: Iterable[QueryRow] = collection.queries(source.path, settings.split)
    else:
        rows = judged_queries(collection, source.path, settings)
    write_rows(out, Queries, whole(rows, source, settings, "queries", settings.split))


def judged_queries(collection: DatasetLoader, path: Path, settings: Topics) -> list[QueryRow]:
    """The queries that the split's qrels name; those without a relevant document may be left out."""
    judged, relevant = _judged_queries(collection, path, settings)
    among = relevant if settings.relevant_alone or settings.fraction is not None else judged
    found: set[str] = set()
    rows = []
    for row in collection.queries(path, settings.split):
        if row["query_id"] in judged:
            found.add(row["query_id"])
            if row["query_id"] in among:
                rows.append(row)
    _note_absent(path, settings, "query", judged - found, judged)
    if not relevant:
        raise UserError(_empty_split(path, settings, "has no query with a relevant document"))
    if dropped := len(judged) - len(rows):
        log.info("%s: %d of %d judged queries have no relevant document%s and are left out", settings.split, dropped,
                 len(judged), _of_slice(settings.fraction))  # fmt: skip
    return rows


@stage(version=1, table=Answers)
def ingest_answers(out: Path, source: Source, queries: Artifact[Queries], *, settings: Topics) -> None:
    """Write what is counted as an answer to each of the queries that has some, in the collection's order."""
    if (collection := answer_loader(settings.reader)) is None:
        raise UserError(f"dataset.reader: {settings.reader} has no answers, which answer@k needs")
    kept = set(read_table(queries, Queries, ["query_id"]).column("query_id").to_pylist())
    rows = (row for row in collection.answers(source.path, settings.split) if row["query_id"] in kept)
    if not write_rows(out, Answers, rows):
        raise UserError(_empty_split(source.path, settings, "has no answers to its queries, which answer@k needs"))


@stage(version=2, table=Qrels)
def ingest_qrels(
    out: Path, source: Source, corpus: Artifact[Documents], queries: Artifact[Queries], *, settings: Topics
) -> None:
    """Write the judgements of the kept queries on documents of the slice, in the collection's order.

    Official qrels name documents that are not in their corpus: nothing can find those, and they count all the same.
    """
    kept = set(read_table(queries, Queries, ["query_id"]).column("query_id").to_pylist())
    read = dataset_loader(settings.reader).qrels(source.path, settings.split)
    rows = [
        row
        for row in whole(read, source, settings, "qrels", settings.split)
        if row["query_id"] in kept and in_slice(row["doc_id"], settings.fraction)
    ]
    if not rows:
        raise UserError(_empty_split(source.path, settings, "has no judgement of a kept query"))
    named = {row["doc_id"] for row in rows}
    _note_absent(source.path, settings, "document", named - _ids_among(corpus, named), named)
    write_rows(out, Qrels, rows)


def whole(rows: Iterable[T], source: Source, settings: Corpus | Topics, part: str, split: str | None) -> Iterator[T]:
    """The rows as they are; where the collection is to be complete, a `UserError` if a file or their number is not."""
    collection, count = dataset_loader(settings.reader), 0
    if settings.complete:
        check_files(settings.reader, collection.files(source.path, part, split))
    for row in rows:
        yield row
        count += 1
    if settings.complete and (settings.fraction is None or part in ("corpus", "documents", "qrels")):
        check_count(settings.reader, source.path, part, split, count)


def _judged_queries(collection: DatasetLoader, path: Path, settings: Topics) -> tuple[set[str], set[str]]:
    """All queries that the split's qrels name, and of those the ones with a relevant document in the slice."""
    judged, relevant = set(), set()
    for row in collection.qrels(path, settings.split):
        judged.add(row["query_id"])
        if row["grade"] > 0 and in_slice(row["doc_id"], settings.fraction):
            relevant.add(row["query_id"])
    return judged, relevant


def _ids_among(corpus: Artifact[Documents], wanted: set[str]) -> set[str]:
    """Which of the documents are in the corpus, with one batch of ids in memory."""
    found: set[str] = set()
    for part in parts(corpus.path):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(columns=["doc_id"]):
                found.update(wanted.intersection(batch.column(0).to_pylist()))
    return found


def _note_absent(path: Path, settings: Topics, what: str, missing: set[str], named: set[str]) -> None:
    """Tell what qrels name and the collection lacks; most of it lacking is a `UserError`: these belong to another."""
    if not missing:
        return
    file = dataset_loader(settings.reader).files(path, "qrels", settings.split)[0]
    found = f"{file}: {len(missing):,} of {len(named):,} {what} ids that the qrels name, such as {min(missing)}, are"
    if len(missing) > len(named) / 2:
        raise UserError(f"{found} not in the collection; give the qrels of this collection")
    print_line(f"{found} not in the collection")


def _empty_split(path: Path, settings: Topics, what: str) -> str:
    return f"{path}: the split {settings.split!r} {what}{_of_slice(settings.fraction)}"


def _of_slice(fraction: float | None) -> str:
    return "" if fraction is None else f" in the slice (fraction {fraction})"
