"""Import pseudo-queries that another tool generated, checked against the passages that they are for.

A database joins the file's queries with their passages and sorts them, in a memory that does not grow with either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import Field

from storage.artifact import Artifact, Source
from storage.batched import portions
from storage.errors import UserError
from storage.external.database import Database
from storage.imports import pseudo_query_files
from storage.rows import num_rows, read_rows, write_rows
from storage.settings import Settings
from storage.store.publishing import SCRATCH
from storage.tables import Passages, PseudoQueries, passage_sha256, passage_text
from tasks.runtime.progress import progress
from tasks.runtime.shard import part
from tasks.session import print_line
from tasks.stage import stage

MOST_PARTS = 256
PASSAGES_PER_PART = 10_000  # at least
QUERIES_PER_BLOCK = 100_000
CHARACTERS_PER_BLOCK = 50_000_000
EXAMPLES = 3

Row = dict[str, Any]

GIVEN = pa.schema([
    ("number", pa.int64()), ("where", pa.string()), ("begins", pa.bool_()), ("is_query", pa.bool_()),
    ("passage_id", pa.string()), ("query", pa.string()), ("passage_sha256", pa.string()),
    ("round_trip", pa.int32()), ("relevance", pa.float32()), ("reason", pa.string()),
    ("generator", pa.string()), ("revision", pa.string()), ("ledger", pa.string()), ("seed", pa.int64()),
    ("draw", pa.int32()),
])  # fmt: skip

LOCATE = """
    CREATE TABLE located AS SELECT given.*, passages.row
    FROM given LEFT JOIN (SELECT row, passage_id FROM passages) AS passages USING (passage_id)
    """
UNKNOWN = 'CREATE TABLE unknown AS SELECT number, "where", passage_id FROM located WHERE row IS NULL'
REPEATED = """
    CREATE TABLE repeated AS SELECT number, "where", passage_id FROM located WHERE begins AND row IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY row ORDER BY number) > 1
    """
IN_ORDER = """
    SELECT * EXCLUDE (number, "where", begins, is_query) FROM located WHERE is_query ORDER BY row, number
    """


class Importing(Settings):
    """The name under which imported queries are recorded."""

    name: str = Field(min_length=1)
    """The generator's name in the table."""


@stage(version=1, table=PseudoQueries)
def import_queries(out: Path, passages: Artifact[Passages], file: Source, *, settings: Importing) -> None:
    """Write the queries of a file (`storage.imports.pseudo_query_files`) in passage order, ranked as the file has them.

    All of them or none: raises UserError where a row is broken, names a passage that is not there, or gives a passage's
    queries a second time.
    """
    total = num_rows(passages.path)
    size = max(PASSAGES_PER_PART, -(-total // MOST_PARTS))
    with Database(out / SCRATCH / "database") as database:
        database.view("passages", passages, Passages)
        database.create("given", GIVEN, _blocks(file.path))
        for statement in (LOCATE, UNKNOWN, REPEATED):
            database.execute(statement)
        _must_fit(database, passages)
        rows = _Joined(passages, database.rows(IN_ORDER), file, settings.name)
        for number, first in enumerate(range(0, total, size)):
            write_rows(out, PseudoQueries, rows.of(first, first + size), part(number))
    if rows.without == total:
        raise UserError(f"{file.path}: has no queries; {pseudo_query_files.EXPECTED}")
    if rows.without:
        print_line(f"{file.path}: has no queries for {rows.without:,} of {total:,} passages")


def _blocks(path: Path) -> Iterator[pa.Table]:
    """Yield the file's queries in its order, as tables of GIVEN."""
    given = enumerate(progress(pseudo_query_files.read(path), what="reading queries", unit="queries"))
    limits = {"limit": CHARACTERS_PER_BLOCK, "number": QUERIES_PER_BLOCK}
    for block in portions(given, size=lambda item: len(item[1].query), **limits):
        columns = {name: [getattr(query, name) for _, query in block] for name in GIVEN.names[1:]}
        yield pa.table({"number": [number for number, _ in block], **columns}, schema=GIVEN)


def _must_fit(database: Database, passages: Artifact[Passages]) -> None:
    """Raise UserError where queries are for unknown passages, or for a passage whose queries were given before."""
    number, examples = _count(database, "unknown")
    if number:
        what = f"{number:,} queries are for passages that are not in {passages.reference}"
        raise UserError(_listed(what, examples) + _hint(examples, passages))
    number, examples = _count(database, "repeated")
    if number:
        what = f"{number:,} passages have a second list of queries"
        raise UserError(_listed(what, examples) + "; keep one list a passage")


def _count(database: Database, table: str) -> tuple[int, list[Row]]:
    """Return the number of a table's rows and the first few."""
    (row,) = database.rows(f"SELECT count(*) AS number FROM {table}")
    return row["number"], list(database.rows(f"SELECT * FROM {table} ORDER BY number LIMIT ?", EXAMPLES))


def _listed(what: str, examples: Sequence[Row]) -> str:
    return f"{what}: " + "; ".join(dict.fromkeys(f"{row['where']}: {row['passage_id']}" for row in examples))


def _hint(unknown: Sequence[Row], passages: Artifact[Passages]) -> str:
    """Return what to do, which depends on whether the ids are those of documents that were split into passages."""
    wanted = {row["passage_id"] for row in unknown}
    for row in read_rows(passages, Passages):
        if row["doc_id"] in wanted:
            return (
                f"; {row['doc_id']} is a document, whose passages are called {row['passage_id']} and so on: import the "
                "file where documents are kept whole (split.max_tokens: null), or name passages in it"
            )
    return "; name passages of the recipe's corpus, or import the file with the recipe whose passages it names"


class _Joined:
    """Queries with their passages, as rows of the table; `given` has the queries in the order of the passages."""

    def __init__(self, passages: Artifact[Passages], given: Iterator[Row], file: Source, name: str) -> None:
        self._passages, self._given, self._file, self._name = passages, given, file, name
        self._next = next(given, None)
        self.without = 0
        """The number of passages that had no query."""

    def of(self, first: int, last: int) -> Iterator[Row]:
        """Yield the rows of the passages `first` to `last`, which follow those of the last call."""
        for number, passage in enumerate(read_rows(self._passages, Passages, first, last), first):
            rank, digest = 0, ""
            while self._next and self._next["row"] == number:
                digest = digest or passage_sha256(passage_text(passage["title"], passage["text"]))
                yield self._row(self._next, passage, digest, rank)
                rank, self._next = rank + 1, next(self._given, None)
            self.without += not rank

    def _row(self, given: Row, passage: Row, digest: str, rank: int) -> Row:
        if given["passage_id"] != passage["passage_id"] or given["passage_sha256"] not in ("", digest):
            raise UserError(
                f"{self._file.path}: its queries of passage {given['passage_id']} were written for another text; "
                "import the file with the passages that it was exported with"
            )
        reason = given["reason"] if given["query"] else "empty"
        return {
            "passage_id": passage["passage_id"], "doc_id": passage["doc_id"], "passage_sha256": digest, "rank": rank,
            "query": given["query"], "generator": given["generator"] or self._name,
            "revision": given["revision"] or self._file.key, "ledger": given["ledger"], "seed": given["seed"],
            "draw": given["draw"], "round_trip": given["round_trip"], "relevance": given["relevance"],
            "kept": not reason, "reason": reason,
        }  # fmt: skip
