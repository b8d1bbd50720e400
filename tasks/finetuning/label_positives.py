"""Say which passages are positives: of judged documents, or of the pseudo-queries made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact
from storage.batched import portions
from storage.errors import UserError
from storage.external.database import Database
from storage.pseudo_queries import kept_queries
from storage.rows import schema_of, write_rows
from storage.store.publishing import SCRATCH
from storage.tables import Passages, Positives, PseudoQueries, Qrels, Queries, Run, Table
from tasks.session import print_line
from tasks.stage import stage

ROWS_PER_BLOCK, CHARACTERS_PER_BLOCK = 10_000, 50_000_000  # of pseudo-queries that are put into the database

LABELLING = [
    """
    CREATE TABLE candidates AS SELECT row, passage_id, doc_id
    FROM passages SEMI JOIN (SELECT doc_id FROM qrels WHERE grade > 0) AS judged USING (doc_id)
    """,
    """
    CREATE TABLE relevant AS SELECT qrels.row, query_id, qrels.doc_id, first_passage
    FROM qrels
    LEFT JOIN (SELECT doc_id, arg_min(passage_id, row) AS first_passage FROM candidates GROUP BY doc_id) AS documents
        USING (doc_id)
    WHERE grade > 0
    """,
    """
    CREATE TABLE retrieved AS SELECT query_id, doc_id, passage_id, rank, run.row
    FROM run
    JOIN candidates USING (passage_id)
    SEMI JOIN relevant USING (query_id, doc_id)
    """,
    """
    CREATE TABLE best AS SELECT query_id, doc_id, arg_min(passage_id, (rank, row)) AS passage_id
    FROM retrieved GROUP BY query_id, doc_id
    """,
]
LABELLED = """
    SELECT query_id, coalesce(best.passage_id, first_passage) AS passage_id, doc_id
    FROM relevant LEFT JOIN best USING (query_id, doc_id)
    WHERE first_passage IS NOT NULL
    ORDER BY relevant.row
    """

ADOPTING = [
    """
    CREATE TABLE adoptable AS SELECT generated.row, passage_id, rank, query, words, passages.doc_id
    FROM generated JOIN passages USING (passage_id)
    """,
    """
    CREATE TABLE texts AS SELECT min(row) AS row, min(doc_id) = max(doc_id) AS of_one_document
    FROM adoptable GROUP BY words
    """,
]
ADOPTED = """
    SELECT passage_id || '?' || rank AS query_id, query AS text, passage_id, doc_id
    FROM adoptable SEMI JOIN (SELECT row FROM texts WHERE of_one_document) AS first USING (row)
    ORDER BY row
    """
GENERATED = pa.schema([
    ("row", pa.int64()), ("passage_id", pa.string()), ("rank", pa.int32()), ("query", pa.string()),
    ("words", pa.string()),
])  # fmt: skip


@stage(version=1, table=Positives)
def label_passages(out: Path, qrels: Artifact[Qrels], passages: Artifact[Passages], bm25_run: Artifact[Run]) -> None:
    """Write one positive for every query and document of grade above 0, in the qrels' order.

    It is the highest ranked passage of the document in the run for that query, or the document's
    first passage where the run has none of them. A document without passages can be no positive.
    """
    with Database(out / SCRATCH / "database") as database:
        database.view("qrels", qrels, Qrels)
        database.view("passages", passages, Passages)
        database.view("run", bm25_run, Run)
        for statement in LABELLING:
            database.execute(statement)
        counts = next(database.rows("SELECT count(*) AS judged, count(first_passage) AS labelled FROM relevant"))
        if counts["judged"] and not counts["labelled"]:
            raise UserError(
                f"{qrels.path}: no relevant document has a passage in {passages.path}; expected some to learn"
            )
        if dropped := counts["judged"] - counts["labelled"]:
            print_line(f"{dropped:,} of {counts['judged']:,} relevant documents have no passage and are left out")
        write_rows(out, Positives, database.rows(LABELLED))


@stage(version=1, table=Queries)
def adopt_pseudo_queries(out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write the pseudo-queries that a collection without train queries trains on; ids are PASSAGE?RANK.

    A text that was generated for several documents does not say which of them is relevant, and is left out; one that
    was generated several times for a document is kept once.
    """
    adopted, ambiguous = _adopt(out, Queries, passages, pseudo_queries)
    if not adopted:
        raise UserError(
            f"{pseudo_queries.path}: every pseudo-query belongs to several documents; none can be trained on"
        )
    if ambiguous:
        print_line(f"{ambiguous:,} texts of pseudo-queries belong to several documents and are omitted")


@stage(version=1, table=Positives)
def adopt_positives(out: Path, passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]) -> None:
    """Write, for each query that `adopt_pseudo_queries` writes, the passage it was generated from."""
    _adopt(out, Positives, passages, pseudo_queries)


def _adopt(
    out: Path, table: type[Table], passages: Artifact[Passages], pseudo_queries: Artifact[PseudoQueries]
) -> tuple[int, int]:
    """Write the table's columns of the adopted pseudo-queries.

    Returns the number of these pseudo-queries and the number of texts that belong to several documents.
    """
    with Database(out / SCRATCH / "database") as database:
        database.view("passages", passages, Passages)
        database.create("generated", GENERATED, _generated(pseudo_queries))
        for statement in ADOPTING:
            database.execute(statement)
        rows = ({name: row[name] for name in schema_of(table).names} for row in database.rows(ADOPTED))
        adopted = write_rows(out, table, rows)
        (ambiguous,) = database.rows("SELECT count(*) AS texts FROM texts WHERE NOT of_one_document")
    return adopted, ambiguous["texts"]


def _generated(pseudo_queries: Artifact[PseudoQueries]) -> Iterator[pa.Table]:
    """Yield the kept pseudo-queries, with the words by which equal texts are recognised."""
    rows = (
        {**row, "row": number, "words": " ".join(row["query"].casefold().split())}
        for number, row in enumerate(kept_queries(pseudo_queries))
    )
    for block in portions(rows, size=lambda row: len(row["query"]), limit=CHARACTERS_PER_BLOCK, number=ROWS_PER_BLOCK):
        yield pa.Table.from_pylist(block, schema=GENERATED)
