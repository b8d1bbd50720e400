"""Ingest a collection: its texts, and the judged queries, the judgements and the answers of one split.

A slice of a collection keeps the documents whose id hash is below `fraction`, and the topics that still have a relevant
document. Rows stay in the collection's order.
"""

from __future__ import annotations

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

T = TypeVar("T")

Fraction = Annotated[float, Field(gt=0, lt=1)] | None


class TextSelection(Settings):
    """Selects the texts of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    name: Literal["corpus", "documents"]
    fraction: Fraction
    """Keep documents whose id hash is below this share of all hashes; null keeps all."""
    complete: bool
    """Require the official files with their number of rows; otherwise any files are read."""
    version: int = Field(default=1, exclude_if=lambda version: version == 1)
    """The version of what the loader reads from these files (`storage.datasets.version`)."""


class Topics(Settings):
    """Selects the queries and judgements of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    split: str
    fraction: Fraction
    """The same as of the corpus."""
    complete: bool
    """The same as of the corpus."""
    relevant_alone: bool
    """Omit judged queries without a relevant document, which cannot be trained on. A slice always omits them, since
    their documents may be outside it; complete splits are evaluated with them, as trec_eval does."""


@stage(version=2, table=Documents)
def ingest_corpus(out: Path, source: Source, *, settings: TextSelection) -> None:
    """Write the documents of the slice, in the collection's order."""
    rows = checked(
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
            f"{source.path}: {empty['documents']:,} documents have neither title nor text; no query can retrieve them"
        )


@stage(version=2, table=Queries)
def ingest_queries(out: Path, source: Source, *, settings: Topics) -> None:
    """Write the split's judged queries in the collection's order, or all queries of a split without qrels."""
    collection = dataset_loader(settings.reader)
    if not has_qrels(settings.reader, settings.split):
        rows: Iterable[QueryRow] = collection.queries(source.path, settings.split)
    else:
        rows = judged_queries(collection, source.path, settings)
    write_rows(out, Queries, checked(rows, source, settings, "queries", settings.split))


def judged_queries(collection: DatasetLoader, path: Path, settings: Topics) -> list[QueryRow]:
    """Return the queries in the split's qrels; those without a relevant document may be omitted."""
    judged, relevant = _judged_queries(collection, path, settings)
    selected = relevant if settings.relevant_alone or settings.fraction is not None else judged
    present: set[str] = set()
    rows = []
    for row in collection.queries(path, settings.split):
        if row["query_id"] in judged:
            present.add(row["query_id"])
            if row["query_id"] in selected:
                rows.append(row)
    _note_absent(path, settings, "query", judged - present, judged)
    if not relevant:
        raise UserError(_empty_split(path, settings, "has no query with a relevant document"))
    if len(rows) < len(judged):
        print_line(
            f"{settings.split}: {len(rows):,} of {len(judged):,} judged queries are used; the others have no relevant "
            f"document{_of_slice(settings.fraction)}"
        )
    return rows


@stage(version=1, table=Answers)
def ingest_answers(out: Path, source: Source, queries: Artifact[Queries], *, settings: Topics) -> None:
    """Write the accepted answers to the queries, in the collection's order."""
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

    Official qrels contain documents that are not in their corpus; they cannot be retrieved, but they count.
    """
    kept = set(read_table(queries, Queries, ["query_id"]).column("query_id").to_pylist())
    read = dataset_loader(settings.reader).qrels(source.path, settings.split)
    rows = [
        row
        for row in checked(read, source, settings, "qrels", settings.split)
        if row["query_id"] in kept and in_slice(row["doc_id"], settings.fraction)
    ]
    if not rows:
        raise UserError(_empty_split(source.path, settings, "has no judgement of a kept query"))
    judged = {row["doc_id"] for row in rows}
    _note_absent(source.path, settings, "document", judged - _ids_among(corpus, judged), judged)
    write_rows(out, Qrels, rows)


def checked(
    rows: Iterable[T], source: Source, settings: TextSelection | Topics, part: str, split: str | None
) -> Iterator[T]:
    """Yield the rows; if the collection must be complete, raise UserError for a missing file or number of rows."""
    collection, count = dataset_loader(settings.reader), 0
    if settings.complete:
        check_files(settings.reader, collection.files(source.path, part, split))
    for row in rows:
        yield row
        count += 1
    if settings.complete and (settings.fraction is None or part in ("corpus", "documents", "qrels")):
        check_count(settings.reader, source.path, part, split, count)


def _judged_queries(collection: DatasetLoader, path: Path, settings: Topics) -> tuple[set[str], set[str]]:
    """Return all queries in the split's qrels, and those with a relevant document in the slice."""
    judged, relevant = set(), set()
    for row in collection.qrels(path, settings.split):
        judged.add(row["query_id"])
        if row["grade"] > 0 and in_slice(row["doc_id"], settings.fraction):
            relevant.add(row["query_id"])
    return judged, relevant


def _ids_among(corpus: Artifact[Documents], wanted: set[str]) -> set[str]:
    """Return the documents that are in the corpus, with one batch of ids in memory."""
    present: set[str] = set()
    for part in parts(corpus.path):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(columns=["doc_id"]):
                present.update(wanted.intersection(batch.column(0).to_pylist()))
    return present


def _note_absent(path: Path, settings: Topics, what: str, missing: set[str], judged: set[str]) -> None:
    """Report ids in the qrels that the collection lacks; raise UserError if it lacks most of them."""
    if not missing:
        return
    file = dataset_loader(settings.reader).files(path, "qrels", settings.split)[0]
    message = f"{file}: {len(missing):,} of {len(judged):,} {what} ids in the qrels, such as {min(missing)}, are"
    if len(missing) > len(judged) / 2:
        raise UserError(f"{message} not in the collection; give the qrels of this collection")
    print_line(f"{message} not in the collection")


def _empty_split(path: Path, settings: Topics, what: str) -> str:
    return f"{path}: the split {settings.split!r} {what}{_of_slice(settings.fraction)}"


def _of_slice(fraction: float | None) -> str:
    return "" if fraction is None else f" in the slice (fraction {fraction})"
