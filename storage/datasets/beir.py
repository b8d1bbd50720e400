"""A folder in BEIR's layout (Thakur et al. 2021), plain or gzipped.

corpus.jsonl and, where passages come from longer texts, documents.jsonl: `_id`, `title`, `text`;
queries.jsonl: `_id`, `text`, and optionally `answers`, a list; qrels/SPLIT.tsv: a header, then query-id, corpus-id,
score. If a file is there plain and gzipped, the plain one is read. Other fields are ignored; a title may be missing.
A document may have neither title nor text, as in some official sets: it is kept, and no search returns it.
Generated queries have a prefix in BEIR, and here the split PREFIX-SPLIT: gen-train is read from gen-queries.jsonl and
gen-qrels/train.tsv, unless there is a qrels/gen-train.tsv.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.errors import UserError, quoted
from storage.formats.ids import Unique, checked_id
from storage.formats.lines import answer_list, plain_or_gzipped, read_json_lines, read_lines, text_field
from storage.formats.records import AnswerRow, QrelRow, QueryRow, TextRow
from storage.formats.tsv_files import distinct_judgements

FETCH = (
    "put a folder in BEIR's layout there; `pretrieve fetch NAME DIR` fetches squad, scifact, medquad, covid-qa, cisi "
    "or cranfield, and beir/NAME, an official set"
)
IGNORE_IDENTICAL_IDS = True  # where queries are documents too, as of ArguAna and Quora (BEIR's own evaluation)
HEADER = ["query-id", "corpus-id", "score"]
INTEGER = re.compile("[+-]?[0-9]{1,19}")
GRADES = range(-(2**31), 2**31)


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the file of a part; for "queries" also the qrels of the split."""
    if part == "qrels":
        return [_qrels_file(path, split)]
    if part == "answers":
        return [_queries_file(path, split)]
    if part == "queries":
        return [_queries_file(path, split), _qrels_file(path, split)]
    return [_json_file(path, part)]


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the rows of corpus.jsonl or documents.jsonl."""
    file = _json_file(path, name)
    seen = Unique()
    for where, row in read_json_lines(file):
        doc_id = checked_id(text_field(row, "_id", where), where)
        title = "" if row.get("title") is None else text_field(row, "title", where)
        text = text_field(row, "text", where)
        seen.add(doc_id)
        yield {"doc_id": doc_id, "title": title, "text": text}
    seen.check(lambda: ((where, row["_id"]) for where, row in read_json_lines(file)))


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Yield every row of queries.jsonl, which has the queries of all splits."""
    yield from _queries_of(_queries_file(path, split))


def all_queries(path: Path) -> Iterator[QueryRow]:
    """Yield every row of queries.jsonl, in a folder that need not have qrels."""
    yield from _queries_of(_json_file(path, "queries"))


def _queries_of(file: Path) -> Iterator[QueryRow]:
    seen = Unique()
    for where, row in read_json_lines(file):
        query_id = checked_id(text_field(row, "_id", where), where)
        text = text_field(row, "text", where)
        if not text.strip():
            raise UserError(f"{where}: query {query_id} is empty: expected a text; remove the row")
        seen.add(query_id)
        yield {"query_id": query_id, "text": text}
    seen.check(lambda: ((where, row["_id"]) for where, row in read_json_lines(file)))


def has_answers(path: Path, split: str) -> bool:
    """Return whether any judged query of the split has answers."""
    judged = {row["query_id"] for _, row in judgements(_qrels_file(path, split))}
    return any(row["query_id"] in judged for row in answers(path, split))


def answers(path: Path, split: str) -> Iterator[AnswerRow]:
    """Yield the answers to each query of queries.jsonl that has some."""
    for where, row in read_json_lines(_queries_file(path, split)):
        if accepted := answer_list(row.get("answers") or [], where):
            yield {"query_id": text_field(row, "_id", where), "answers": accepted}


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Yield the rows of qrels/SPLIT.tsv, a duplicate row once. Raises UserError for two grades of one pair."""
    file = _qrels_file(path, split)
    problem = f"{file}: the split is empty: expected judgements after the header"
    yield from distinct_judgements(judgements(file), "document", problem)


def judgements(file: Path, document_id: Callable[[str], str] = str) -> Iterator[tuple[str, QrelRow]]:
    """Yield ("FILE line 17", judgement) for each row of a qrels file, in order, with duplicates.

    `document_id` returns the id of a document that the file names.
    """
    lines = read_lines(file)
    _check_header(file, lines)
    for where, text in lines:
        yield where, _judgement(text, where, document_id)


def _json_file(path: Path, part: str) -> Path:
    if file := plain_or_gzipped(path / f"{part}.jsonl"):
        return file
    if path.is_file():
        raise UserError(
            f"{path}: expected a folder in BEIR's layout; for a file of texts add --set dataset.reader=texts"
        )
    hint = "; where the corpus is split and retrieved, write `corpus` in the recipe" if part == "documents" else ""
    raise UserError(f"{path / part}.jsonl: no such file, nor {part}.jsonl.gz; expected a folder in BEIR's layout{hint}")


def _queries_file(path: Path, split: str | None) -> Path:
    qrels_file = _qrels_file(path, split)
    return _json_file(path, qrels_file.parent.name.removesuffix("qrels") + "queries")


def _qrels_file(path: Path, split: str | None) -> Path:
    prefix, _, rest = (split or "").rpartition("-")
    file = path / "qrels" / f"{split}.tsv"
    generated = path / f"{prefix}-qrels" / f"{rest}.tsv"
    if present := plain_or_gzipped(file) or (prefix and plain_or_gzipped(generated)):
        return present
    splits = sorted(present.name.split(".tsv")[0] for present in (path / "qrels").glob("*.tsv*"))
    none = (
        "no judgements are there; `pretrieve adapt` needs none, and `pretrieve queries build` with a generator (--set "
        "queries.train=null --set queries.model=MODEL) needs none either"
    )
    there = f"the splits there are {', '.join(splits)}" if splits else none
    raise UserError(f"{file}: no such file, nor {file.name}.gz; {there}")


def _check_header(file: Path, lines: Iterator[tuple[str, str]]) -> None:
    where, text = next(lines, (f"{file} line 1", ""))
    if [name.strip().lower().replace("_", "-") for name in text.split("\t")] != HEADER:
        raise UserError(f"{where}: expected the header query-id, corpus-id, score (tabs between), found {text[:60]!r}")


def _judgement(text: str, where: str, document_id: Callable[[str], str]) -> QrelRow:
    columns = text.split("\t")
    if len(columns) != len(HEADER):
        raise UserError(f"{where}: expected 3 columns with tabs between, found {len(columns)}: {text[:60]!r}")
    query_id, named, score = (column.strip() for column in columns)
    if not INTEGER.fullmatch(score):
        raise UserError(f"{where}: expected a whole number as score, found {quoted(score)}")
    if (grade := int(score)) not in GRADES:
        raise UserError(f"{where}: the score {grade} does not fit 32 bits")
    doc_id = checked_id(document_id(named), where)
    return {"query_id": checked_id(query_id, where), "doc_id": doc_id, "grade": grade}
