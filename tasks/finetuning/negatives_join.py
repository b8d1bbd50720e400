"""Joins of imported negatives with the passages and the positives, in SQL: tables, statements and queries.

`given` are the negatives of a file and `labels` the positives, each with the number of its train query; `passages` is
the view of the corpus. The id of a negative is a passage's or a document's; a document's means its first
passage. Numbers of rows decide the order everywhere.
"""

import pyarrow as pa

GIVEN = pa.schema([
    ("number", pa.int64()), ("query", pa.int32()), ("passage_id", pa.string()), ("system", pa.int16()),
    ("score", pa.float64()), ("positive", pa.float64()),
])  # fmt: skip
LABELS = pa.schema([("number", pa.int64()), ("query", pa.int32()), ("passage_id", pa.string())])

LOCATE = [
    "CREATE TABLE documents AS SELECT doc_id, min(row) AS row, arg_min(passage_id, row) AS passage_id "
    "FROM passages GROUP BY doc_id",
    """
    CREATE TABLE by_passage AS SELECT given.*, passages.row, passages.doc_id
    FROM given LEFT JOIN (SELECT row, passage_id, doc_id FROM passages) AS passages USING (passage_id)
    """,
    """
    CREATE TABLE located AS SELECT by_passage.* REPLACE (
        coalesce(by_passage.row, documents.row) AS row, coalesce(by_passage.doc_id, documents.doc_id) AS doc_id,
        CASE WHEN by_passage.row IS NULL THEN documents.passage_id ELSE by_passage.passage_id END AS passage_id),
        by_passage.passage_id AS given_id
    FROM by_passage LEFT JOIN documents ON by_passage.passage_id = documents.doc_id
    """,
]
COUNTS = "SELECT count(*) AS passages, count(row) AS known FROM located"
UNKNOWN = """
    SELECT given_id FROM located WHERE row IS NULL GROUP BY given_id ORDER BY min(number) LIMIT ?
    """
RELEVANT = """
    CREATE TABLE relevant AS SELECT number, query, labels.passage_id, doc_id
    FROM labels LEFT JOIN (SELECT passage_id, doc_id FROM passages) AS passages USING (passage_id)
    """
MISSING = "SELECT passage_id FROM relevant WHERE doc_id IS NULL ORDER BY number LIMIT 1"
RANK = [
    "CREATE TABLE irrelevant AS SELECT * FROM located ANTI JOIN relevant USING (query, doc_id) WHERE row IS NOT NULL",
    # In triples a negative is given once for each positive.
    """
    CREATE TABLE distinct_negatives AS SELECT * FROM irrelevant
    QUALIFY row_number() OVER (PARTITION BY query, system, row ORDER BY number) = 1
    """,
    """
    CREATE TABLE ranked AS
    SELECT *, row_number() OVER (PARTITION BY query, system ORDER BY number) AS rank FROM distinct_negatives
    """,
]
RANKED = """
    SELECT query, system, row, passage_id, rank, score FROM ranked
    WHERE ? IS NULL OR (score <= positive - ? AND NOT isnan(positive))
    ORDER BY query, number
    """
