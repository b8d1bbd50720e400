"""Ingest a collection: its texts, and of one split the judged queries and the judgements.

A slice of a collection keeps the documents whose id's hash is below `fraction`, and of the topics
those that still have a relevant document; everything stays in the collection's order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import pyarrow.parquet as pq
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.datasets import QrelRow, QueryRow, Reader, reader
from storage.errors import UserError
from storage.ids import in_slice
from storage.rows import parts, read_table, write_rows
from storage.settings import Settings
from storage.tables import Documents, Qrels, Queries
from tasks.progress import progress
from tasks.stage import stage

log = logging.getLogger(__name__)

Fraction = Annotated[float, Field(gt=0, lt=1)] | None


class Corpus(Settings):
    """Which texts of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    name: Literal["corpus", "documents"]
    fraction: Fraction
    """Keep documents whose id's hash is below this share of all hashes; null keeps all."""


class Topics(Settings):
    """Which queries and judgements of a collection."""

    reader: str
    """A file of `storage/datasets`."""
    split: str
    fraction: Fraction
    """That of the corpus."""


@stage(version=1, table=Documents)
def ingest_corpus(out: Path, source: Source, *, settings: Corpus) -> None:
    """Write the documents of the slice, in the collection's order."""
    rows = reader(settings.reader).texts(source.path, settings.name)
    kept = (row for row in rows if in_slice(row["doc_id"], settings.fraction))
    if (first := next(kept, None)) is None:
        raise UserError(f"{source.path}: the {settings.name} has no documents{_of_slice(settings.fraction)}")
    write_rows(out, Documents, progress(chain([first], kept), what="reading documents", unit="documents"))


@stage(version=1, table=Queries)
def ingest_queries(out: Path, source: Source, *, settings: Topics) -> None:
    """Write the split's queries that have a document of grade above 0 in the slice, in the collection's order."""
    collection = reader(settings.reader)
    judged, relevant = _judged_queries(collection, source.path, settings)
    found: set[str] = set()

    def kept() -> Iterator[QueryRow]:
        for row in collection.queries(source.path, settings.split):
            if row["query_id"] in judged:
                found.add(row["query_id"])
                if row["query_id"] in relevant:
                    yield row

    rows = list(kept())
    if missing := judged - found:
        raise UserError(_pointing_nowhere(source.path, settings, "query", missing))
    if not rows:
        raise UserError(_empty_split(source.path, settings, "has no query with a relevant document"))
    if dropped := len(judged) - len(rows):
        log.info("%s: %d of %d judged queries have no relevant document%s and are left out", settings.split, dropped,
                 len(judged), _of_slice(settings.fraction))  # fmt: skip
    write_rows(out, Queries, rows)


@stage(version=1, table=Qrels)
def ingest_qrels(
    out: Path, source: Source, corpus: Artifact[Documents], queries: Artifact[Queries], *, settings: Topics
) -> None:
    """Write the judgements of the kept queries on documents of the slice, in the collection's order."""
    kept = set(read_table(queries, Queries, ["query_id"]).column("query_id").to_pylist())
    rows = [
        row
        for row in reader(settings.reader).qrels(source.path, settings.split)
        if row["query_id"] in kept and in_slice(row["doc_id"], settings.fraction)
    ]
    if not rows:
        raise UserError(_empty_split(source.path, settings, "has no judgement of a kept query"))
    if missing := {row["doc_id"] for row in rows} - _ids_among(corpus, rows):
        raise UserError(_pointing_nowhere(source.path, settings, "document", missing))
    write_rows(out, Qrels, rows)


def _judged_queries(collection: Reader, path: Path, settings: Topics) -> tuple[set[str], set[str]]:
    """All queries that the split's qrels name, and of those the ones with a relevant document in the slice."""
    judged, relevant = set(), set()
    for row in collection.qrels(path, settings.split):
        judged.add(row["query_id"])
        if row["grade"] > 0 and in_slice(row["doc_id"], settings.fraction):
            relevant.add(row["query_id"])
    return judged, relevant


def _ids_among(corpus: Artifact[Documents], rows: list[QrelRow]) -> set[str]:
    """Which of the documents that qrels name are in the corpus, with one batch of ids in memory."""
    wanted = {row["doc_id"] for row in rows}
    found: set[str] = set()
    for part in parts(corpus.path):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(columns=["doc_id"]):
                found.update(wanted.intersection(batch.column(0).to_pylist()))
    return found


def _pointing_nowhere(path: Path, settings: Topics, what: str, missing: set[str]) -> str:
    file = reader(settings.reader).files(path, "qrels", settings.split)[0]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{file}: the qrels name {what} {min(missing)}{more}, which the collection lacks; remove the rows or add it"


def _empty_split(path: Path, settings: Topics, what: str) -> str:
    return f"{path}: the split {settings.split!r} {what}{_of_slice(settings.fraction)}"


def _of_slice(fraction: float | None) -> str:
    return "" if fraction is None else f" in the slice (fraction {fraction})"
