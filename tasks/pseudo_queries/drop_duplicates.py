"""Drop pseudo-queries that repeat an earlier one, within their passage or in the whole corpus.

A database on disk compares them, in a memory that does not grow with the corpus but for a byte a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from storage.artifact import Artifact
from storage.batched import arrow_blocks
from storage.external.database import Database
from storage.rows import num_rows, parts, read_blocks, table_blocks, write_blocks
from storage.settings import Settings
from storage.store.publishing import SCRATCH
from storage.tables import PseudoQueries
from tasks.pseudo_queries.dropped_counts import report_dropped
from tasks.pseudo_queries.near_duplicates import is_similar, later_duplicates, similar_pairs
from tasks.pseudo_queries.query_text import words_of
from tasks.runtime.progress import progress
from tasks.stage import stage

Scope = Literal["passage", "corpus"]

ROWS_PER_BLOCK = 10_000
KEPT = pa.schema([
    ("row", pa.int64()), ("passage", pa.int64()), ("text", pa.string()), ("words", pa.list_(pa.string())),
])  # fmt: skip
DROPPED = pa.schema([("row", pa.int64()), ("reason", pa.string())])
IDS = pa.schema([("id", pa.int64())])

EXACT = """
    INSERT INTO dropped SELECT row, 'exact duplicate' FROM
    (SELECT row FROM kept QUALIFY row_number() OVER (PARTITION BY {columns} ORDER BY row) > 1)
    """
REMAINING = "CREATE TABLE remaining AS SELECT row, passage, words FROM kept ANTI JOIN dropped USING (row)"
SETS = "CREATE TABLE sets AS SELECT min(row) AS id, words FROM remaining WHERE len(words) > 0 GROUP BY words"
NEAR = """
    INSERT INTO dropped SELECT row, 'near duplicate' FROM remaining JOIN sets USING (words)
    WHERE row > id OR id IN (SELECT id FROM near_sets)
    """


class Duplicates(Settings):
    """The duplicates to drop: of queries of the own passage, or of the whole corpus. The first of them is kept."""

    exact: Annotated[Scope | None, Field(examples=["corpus"])] = None
    """Queries of the same words in the same order, whatever their case and punctuation."""
    near: Annotated[Scope | None, Field(examples=["corpus"])] = None
    """Queries whose sets of words are similar."""
    similarity: Annotated[float, Field(gt=0, le=1, examples=[0.8])] = 0.8
    """The least Jaccard similarity of near duplicates: shared words by all words of the two."""

    @model_validator(mode="after")
    def _some(self) -> Duplicates:
        if self.exact is None and self.near is None:
            raise ValueError("expected exact, near or both; to drop no duplicate, set duplicates to null")
        return self


@stage(version=1, table=PseudoQueries)
def drop_duplicates(out: Path, pseudo_queries: Artifact[PseudoQueries], *, settings: Duplicates) -> None:
    """Write the pseudo-queries with new values of `kept` and `reason` where one repeats an earlier kept one."""
    with Database(out / SCRATCH / "database") as database:
        database.create("kept", KEPT, arrow_blocks(_kept(pseudo_queries), KEPT, ROWS_PER_BLOCK))
        database.create("dropped", DROPPED)
        if settings.exact:
            database.execute(EXACT.format(columns="text" if settings.exact == "corpus" else "passage, text"))
        if settings.near:
            database.execute(REMAINING)
            if settings.near == "corpus":
                _drop_in_corpus(database, settings.similarity, num_rows(pseudo_queries.path))
            else:
                _drop_in_passages(database, settings.similarity)
        _rewrite(out, pseudo_queries, database.rows("SELECT row, reason FROM dropped ORDER BY row"))
    report_dropped("drop_duplicates", out, pseudo_queries, "queries.filter.duplicates", "raise similarity")


def _kept(queries: Artifact[PseudoQueries]) -> Iterator[dict[str, Any]]:
    """Yield the kept queries with their numbers, the numbers of their passages, their words in order and as a set."""
    first, total = 0, num_rows(queries.path)
    columns = ("passage_id", "query", "kept")
    rows = (row for block in table_blocks(queries.path, PseudoQueries, columns) for row in block.to_pylist())
    counted = progress(rows, what="comparing queries", unit="queries", total=total)
    for number, (_, group) in enumerate(groupby(counted, key=itemgetter("passage_id"))):
        for row, query in enumerate(group, first):
            first = row + 1
            if query["kept"]:
                words = words_of(query["query"])
                yield {"row": row, "passage": number, "text": " ".join(words), "words": sorted(set(words))}


def _drop_in_corpus(database: Database, similarity: float, total: int) -> None:
    database.execute(SETS)
    duplicates = ({"id": number} for number in later_duplicates(similar_pairs(database, similarity), total))
    database.create("near_sets", IDS, arrow_blocks(duplicates, IDS, ROWS_PER_BLOCK))
    database.execute(NEAR)


def _drop_in_passages(database: Database, similarity: float) -> None:
    rows = database.rows("SELECT row, passage, words FROM remaining ORDER BY row")
    for block in arrow_blocks(_near_in_passages(rows, similarity), DROPPED, ROWS_PER_BLOCK):
        database.insert("dropped", block)


def _near_in_passages(rows: Iterator[dict[str, Any]], similarity: float) -> Iterator[dict[str, Any]]:
    """Yield the rows that are similar to an earlier kept one of their passage."""
    for _, group in groupby(rows, key=itemgetter("passage")):
        kept: list[frozenset[str]] = []
        for row in group:
            words = frozenset(row["words"])
            if words and any(is_similar(earlier, words, similarity) for earlier in kept):
                yield {"row": row["row"], "reason": "near duplicate"}
            else:
                kept.append(words)


def _rewrite(out: Path, queries: Artifact[PseudoQueries], dropped: Iterator[dict[str, Any]]) -> None:
    """Write the table's files with the reasons of the rows in `dropped`, which come in their order."""
    pending, first = next(dropped, None), 0

    def changed(block: pa.Table) -> pa.Table:
        nonlocal pending, first
        reasons = block["reason"].to_pylist()
        while pending is not None and pending["row"] < first + len(block):
            reasons[pending["row"] - first] = pending["reason"]
            pending = next(dropped, None)
        first += len(block)
        for name, values in (("kept", pa.array([not r for r in reasons])), ("reason", pa.array(reasons, pa.string()))):
            block = block.set_column(block.schema.get_field_index(name), name, values)
        return block

    for file in parts(queries.path):
        write_blocks(out, PseudoQueries, map(changed, read_blocks(file, PseudoQueries)), file.stem)
