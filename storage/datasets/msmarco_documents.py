"""MS MARCO document ranking in its official files (for non-commercial research), plain or gzipped.

msmarco-docs.tsv: docid, url, title, body; msmarco-doc*-queries.tsv and the TREC topics: qid, query; judgements are
qid, 0 or Q0, docid, grade. `dl19` and `dl20` are the topics of the TREC Deep Learning tracks, graded 0 to 3: a document
of grade 1 is relevant, unlike such a passage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage.datasets import msmarco
from storage.errors import UserError
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.formats.tsv_files import read_qrels, read_queries

FETCH = msmarco.FETCH.replace("msmarco DIR", "msmarco_documents DIR")
DOCUMENTS = "msmarco-docs.tsv"
TOPICS = {
    "train": (["msmarco-doctrain-queries.tsv"], "msmarco-doctrain-qrels.tsv"),
    "dev": (["msmarco-docdev-queries.tsv"], "msmarco-docdev-qrels.tsv"),
    "dl19": (["msmarco-test2019-queries.tsv"], "2019qrels-docs.txt"),
    "dl20": (["msmarco-test2020-queries.tsv"], "2020qrels-docs.txt"),
}
NUM_ROWS: dict[tuple[str, str | None], int] = {
    ("corpus", None): 3_213_835,
    ("queries", "train"): 367_013,
    ("queries", "dev"): 5_193,
    ("queries", "dl19"): 43,
    ("queries", "dl20"): 45,
    ("qrels", "train"): 367_013,
    ("qrels", "dev"): 5_193,
    ("qrels", "dl19"): 16_258,
    ("qrels", "dl20"): 9_098,
}
"""Numbers of documents, judged queries and judgements of the complete collection (ir_datasets 0.6.3)."""
CHECKSUMS = {  # of ir_datasets 0.6.3; not the gzipped qrels of train and dev: two different sums are published for each
    "msmarco-docs.tsv.gz": msmarco.CHECKSUMS["msmarco-docs.tsv.gz"],
    "msmarco-doctrain-queries.tsv.gz": "4086d31a9cf2d7b69c4932609058111d",
    "msmarco-docdev-queries.tsv.gz": "ac20593d71b9c32ab2633230f9cdf10d",
    "msmarco-test2019-queries.tsv.gz": msmarco.CHECKSUMS["msmarco-test2019-queries.tsv.gz"],
    "2019qrels-docs.txt": "d7ef53b995ef7e01676ea85d7ec01dda",
    "msmarco-test2020-queries.tsv.gz": msmarco.CHECKSUMS["msmarco-test2020-queries.tsv.gz"],
    "2020qrels-docs.txt": "e10f3545583b124a4ed5e7992293e15a",
}


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the file of a part; for "queries" also the qrels of the split."""
    if part == "documents":
        raise UserError("msmarco_documents has no `documents`; write `corpus` for both of the recipe's corpora")
    if part == "corpus":
        return [msmarco.find(path, [DOCUMENTS])]
    return msmarco.topic_files(path, part, split, reader="msmarco_documents", topics=TOPICS)


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the documents with their titles. A document with neither title nor body has its URL as title."""
    return msmarco.read_documents(files(path, name, None)[0])


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Yield every row of the split's file of queries, judged or not."""
    return read_queries(files(path, "queries", split)[0])


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Yield the split's judgements, a duplicate row once. Raises UserError for two grades of one pair."""
    return read_qrels(files(path, "qrels", split)[0], "document")
