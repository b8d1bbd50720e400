"""MS MARCO in its official files (Nguyen et al. 2016; for non-commercial research), plain or gzipped.

collection.tsv: pid, passage; msmarco-docs.tsv: docid, url, title, body; queries.*.tsv: qid, query; all with tabs
between. Judgements are qid, 0 or Q0, pid, grade, with tabs or blanks between, and name passages. `dev` is the small
dev set that papers report; `dl19` and `dl20` are the topics of the TREC Deep Learning tracks, graded 0 to 3. Texts
are taken as they are, with the wrongly decoded letters that some passages are known for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from storage.datasets import QrelRow, QueryRow, TextRow
from storage.errors import UserError
from storage.ids import Unique, checked_id
from storage.lines import plain_or_gzipped, read_lines

FETCH = "https://microsoft.github.io/msmarco/Datasets and https://trec.nist.gov/data/deep.html say where to fetch it"
TEXTS = {"corpus": "collection.tsv", "documents": "msmarco-docs.tsv"}
QUERIES = {
    "train": ["queries.train.tsv"],
    "dev": ["queries.dev.small.tsv", "queries.dev.tsv"],  # the second has those of the first, and others
    "dl19": ["msmarco-test2019-queries.tsv"],
    "dl20": ["msmarco-test2020-queries.tsv"],
}
QRELS = {
    "train": "qrels.train.tsv",
    "dev": "qrels.dev.small.tsv",
    "dl19": "2019qrels-pass.txt",
    "dl20": "2020qrels-pass.txt",
}
NUM_ROWS: dict[tuple[str, str | None], int] = {
    ("corpus", None): 8_841_823,
    ("documents", None): 3_213_835,
    ("queries", "train"): 502_939,
    ("queries", "dev"): 6_980,
    ("queries", "dl19"): 43,
    ("queries", "dl20"): 54,
    ("qrels", "train"): 532_761,
    ("qrels", "dev"): 7_437,
    ("qrels", "dl19"): 9_260,
    ("qrels", "dl20"): 11_386,
}
"""How many texts, judged queries and judgements the whole collection has: what a plan counts with where it is not here.
Files with other counts are read all the same."""


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The one file of a part; for "queries" the qrels of the split as well."""
    if part in TEXTS:
        return [_file(path, [TEXTS[part]])]
    if split not in QRELS:
        raise UserError(f"{path}: msmarco has no split {split!r}; its splits are {', '.join(QRELS)}")
    qrels_file = _file(path, [QRELS[split]])
    return [qrels_file] if part == "qrels" else [_file(path, QUERIES[split]), qrels_file]


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """The passages, or the documents with their titles. A document with neither title nor body is called by its URL."""
    file = files(path, name, None)[0]
    seen = Unique()
    for where, columns in _rows(file, 2 if name == "corpus" else 4):
        doc_id, title, text = columns[0], "", columns[-1]
        if name == "documents":
            title = columns[2] if columns[2].strip() or text.strip() else columns[1]
        if not title.strip() and not text.strip():
            raise UserError(f"{where}: document {doc_id} is empty: expected a title or a text; remove the row")
        seen.add(doc_id)
        yield {"doc_id": doc_id, "title": title, "text": text}
    _no_duplicates(file, seen)


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Every row of the split's file of queries, judged or not."""
    file = files(path, "queries", split)[0]
    seen = Unique()
    for where, (query_id, text) in _rows(file, 2):
        if not text.strip():
            raise UserError(f"{where}: query {query_id} is empty: expected a text; remove the row")
        seen.add(query_id)
        yield {"query_id": query_id, "text": text}
    _no_duplicates(file, seen)


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """The rows of the split's judgements. One that is there twice counts once; two grades for a pair are an error."""
    file = files(path, "qrels", split)[0]
    grades: dict[tuple[str, str], int] = {}
    for where, text in read_lines(file):
        row = _judgement(text, where)
        pair = (row["query_id"], row["doc_id"])
        earlier = grades.setdefault(pair, row["grade"])
        if earlier != row["grade"]:
            raise UserError(f"{where}: query {pair[0]} and passage {pair[1]} had grade {earlier} before; keep one row")
    if not grades:
        raise UserError(f"{file}: the split is empty: expected judgements")
    for (query_id, doc_id), grade in grades.items():
        yield {"query_id": query_id, "doc_id": doc_id, "grade": grade}


def _file(path: Path, names: Sequence[str]) -> Path:
    for name in names:
        if found := plain_or_gzipped(path / name):
            return found
    others = "".join(f", {other}" for other in names[1:])
    raise UserError(f"{path / names[0]}: no such file{others}, nor gzipped (.gz); {FETCH}")


def _rows(file: Path, num_columns: int) -> Iterator[tuple[str, list[str]]]:
    """The columns of every row after where it stands; the first is an id."""
    for where, text in read_lines(file):
        columns = text.split("\t")
        if len(columns) != num_columns:
            found = f"found {len(columns)}: {text[:60]!r}"
            raise UserError(f"{where}: expected {num_columns} columns with tabs between, {found}")
        checked_id(columns[0], where)
        yield where, columns


def _judgement(text: str, where: str) -> QrelRow:
    columns = text.split()
    if len(columns) != 4 or columns[1] not in ("0", "Q0"):
        raise UserError(f"{where}: expected query, 0 or Q0, passage and grade, found {text[:60]!r}")
    query_id, _, doc_id, grade = columns
    if not grade.removeprefix("-").isdecimal() or len(grade) > 9:
        raise UserError(f"{where}: expected a whole number as grade, found {grade!r}")
    return {"query_id": query_id, "doc_id": doc_id, "grade": int(grade)}


def _no_duplicates(file: Path, seen: Unique) -> None:
    """Read the file again if ids may stand twice, and name the first that does with both its rows."""
    if not (suspects := seen.suspects()):
        return
    first: dict[str, str] = {}
    for where, text in read_lines(file):
        row_id = text.partition("\t")[0]
        if hash(row_id) in suspects and first.setdefault(row_id, where) != where:
            earlier = first[row_id].rpartition(" line ")[2]
            raise UserError(f"{where}: the id {row_id} stands in line {earlier} already; ids must be unique")
