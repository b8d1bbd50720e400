"""Compare the passages and queries of two versions of a corpus of pseudo-queries, in SQL.

A database joins the tables `passages` (version, row, passage_id, text, hash) and the views `before` and `after` of
PseudoQueries. `version` is "before" or "after", `text` the sha256 of a passage's text, `row` a passage's first row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from storage.artifact import Artifact
from storage.external.database import Database
from storage.tables import PseudoQueries

BEFORE, AFTER = "before", "after"
EXAMPLES = 5  # of each fate
FATES = ("kept", "made", "dropped", "rewritten", "filtered_out", "let_in")
PASSAGES = pa.schema([
    ("version", pa.string()), ("row", pa.int64()), ("passage_id", pa.string()), ("text", pa.string()),
    ("hash", pa.uint64()),
])  # fmt: skip

JOIN_PASSAGES = [
    "CREATE VIEW old AS SELECT * FROM passages WHERE version = 'before'",
    "CREATE VIEW new AS SELECT * FROM passages WHERE version = 'after'",
    "CREATE TABLE same AS SELECT row FROM new SEMI JOIN old USING (passage_id, text)",
    "CREATE TABLE with_known_text AS SELECT row FROM new SEMI JOIN old USING (text)",
    "CREATE TABLE lost AS SELECT * FROM old ANTI JOIN new USING (text)",
    "CREATE TABLE fresh AS SELECT * FROM new ANTI JOIN old USING (text)",
    """
    CREATE TABLE passage_fates AS
    SELECT 'changed' AS fate, fresh.hash, lost.row AS before_row, fresh.row AS after_row
    FROM fresh JOIN lost USING (passage_id)
    """,
    "INSERT INTO passage_fates SELECT 'new', hash, NULL, row FROM fresh ANTI JOIN lost USING (passage_id)",
    "INSERT INTO passage_fates SELECT 'removed', hash, row, NULL FROM lost ANTI JOIN fresh USING (passage_id)",
]
COUNT_PASSAGES = """
    SELECT 'same' AS fate, count(*) AS passages FROM same
    UNION ALL SELECT 'moved', (SELECT count(*) FROM with_known_text) - (SELECT count(*) FROM same)
    UNION ALL SELECT fate, count(*) FROM passage_fates GROUP BY fate
    """
EXAMPLE_PASSAGES = """
    SELECT before_row, after_row FROM passage_fates WHERE fate = ? ORDER BY hash, before_row, after_row LIMIT ?
    """

VERSION_OF_QUERIES = """
    SELECT '{version}' AS version, row, passage_sha256 AS text, generator, query, rank, kept
    FROM {version} WHERE query <> ''
    """
PAIRED = """
    CREATE TABLE {fate} AS
    SELECT old.text, old.generator, old.rank, old.row AS before_row, new.row AS after_row,
        old.kept AS kept_before, new.kept AS kept_after
    FROM (SELECT * FROM numbered WHERE version = 'before') AS old
    JOIN (SELECT * FROM numbered WHERE version = 'after') AS new USING (text, generator, {same}, occurrence)
    """
NUMBERED = """
    CREATE OR REPLACE TABLE numbered AS SELECT *,
        row_number() OVER (PARTITION BY version, text, generator, {same} ORDER BY row) AS occurrence
    FROM {table}
    """
REST = """
    CREATE TABLE {rest} AS SELECT * FROM {table}
    ANTI JOIN (SELECT 'before' AS version, before_row AS row FROM {fate}
               UNION ALL SELECT 'after', after_row FROM {fate}) AS paired USING (version, row)
    """
FATE = "SELECT '{fate}' AS fate, text, generator, rank, before_row, after_row FROM "
JOIN_QUERIES = [
    f"CREATE TABLE queries AS {VERSION_OF_QUERIES.format(version=BEFORE)}",
    f"INSERT INTO queries {VERSION_OF_QUERIES.format(version=AFTER)}",
    # Generators by their first query, which decides between examples.
    """
    CREATE TABLE generators AS SELECT generator, row_number() OVER (ORDER BY version DESC, row) AS number
    FROM (SELECT generator, max(version) AS version, arg_min(row, (version = 'after', row)) AS row
          FROM queries GROUP BY generator)
    """,
    NUMBERED.format(same="query", table="queries"),
    PAIRED.format(fate="kept_queries", same="query"),
    REST.format(rest="not_kept", table="queries", fate="kept_queries"),
    NUMBERED.format(same="rank", table="not_kept"),
    PAIRED.format(fate="rewritten_queries", same="rank"),
    REST.format(rest="unpaired", table="not_kept", fate="rewritten_queries"),
    f"CREATE TABLE query_fates AS {FATE.format(fate='kept')} kept_queries",
    f"INSERT INTO query_fates {FATE.format(fate='rewritten')} rewritten_queries",
    f"INSERT INTO query_fates {FATE.format(fate='filtered_out')} kept_queries WHERE kept_before AND NOT kept_after",
    f"INSERT INTO query_fates {FATE.format(fate='let_in')} kept_queries WHERE kept_after AND NOT kept_before",
    """
    INSERT INTO query_fates SELECT 'dropped', text, generator, rank, row, NULL FROM unpaired WHERE version = 'before'
    """,
    "INSERT INTO query_fates SELECT 'made', text, generator, rank, NULL, row FROM unpaired WHERE version = 'after'",
]
COUNT_QUERIES = "SELECT fate, generator, count(*) AS queries FROM query_fates GROUP BY fate, generator"
EXAMPLE_QUERIES = """
    SELECT before_row, after_row FROM query_fates JOIN generators USING (generator) WHERE fate = ?
    QUALIFY row_number() OVER (PARTITION BY text ORDER BY number, rank, coalesce(before_row, after_row)) = 1
    ORDER BY text LIMIT ?
    """

Rows = list[tuple[int | None, int | None]]
"""For each example its row before and its row after; None where it has none."""


def join_versions(
    database: Database, before: Artifact[PseudoQueries], after: Artifact[PseudoQueries], passages: Iterable[pa.Table]
) -> None:
    """Find the fates of all passages and queries; `passages` are blocks of PASSAGES."""
    database.view(BEFORE, before, PseudoQueries)
    database.view(AFTER, after, PseudoQueries)
    join_passages(database, passages)
    for statement in JOIN_QUERIES:
        database.execute(statement)


def join_passages(database: Database, passages: Iterable[pa.Table]) -> None:
    """Find the fates of all passages, in blocks of PASSAGES."""
    database.create("passages", PASSAGES, passages)
    for statement in JOIN_PASSAGES:
        database.execute(statement)


def passage_counts(database: Database) -> dict[str, int]:
    """Return how many passages have each fate."""
    counts = {row["fate"]: row["passages"] for row in database.rows(COUNT_PASSAGES)}
    return {fate: counts.get(fate, 0) for fate in ("same", "moved", "changed", "new", "removed")}


def query_counts(database: Database) -> dict[str, dict[str, int]]:
    """Return how many queries of each generator have each fate; generators come by name."""
    names = sorted(row["generator"] for row in database.rows("SELECT generator FROM generators"))
    counts = {name: dict.fromkeys(FATES, 0) for name in names}
    for row in database.rows(COUNT_QUERIES):
        counts[row["generator"]][row["fate"]] = row["queries"]
    return counts


def example_rows(database: Database, query: str, fates: Sequence[str]) -> dict[str, Rows]:
    """Return the rows of a few examples of each fate: EXAMPLE_PASSAGES or EXAMPLE_QUERIES chooses them."""
    return {fate: [_pair(row) for row in database.rows(query, fate, EXAMPLES)] for fate in fates}


def _pair(row: dict[str, Any]) -> tuple[int | None, int | None]:
    return row["before_row"], row["after_row"]
