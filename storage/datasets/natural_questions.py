"""Natural Questions in the form of DPR (Karpukhin et al. 2020; CC BY-NC 4.0), plain or gzipped.

psgs_w100.tsv: id, text, title of 100-word passages of Wikipedia, with tabs between and CSV's quoting.
biencoder-nq-train.json and biencoder-nq-dev.json: arrays of questions with `answers` and `positive_ctxs`, the positive
passages: the annotators' (score 1000) has grade 2; others, which contain an answer and were retrieved by BM25, have
grade 1. nq-test.qa.csv, nq-dev.qa.csv: question, tab, a Python list of answers, without judgements: a passage that
contains an answer is relevant. The latter is the split `dev_qa`, since its questions are not those of `dev`.
A question has no id in these files: here it is SPLIT-NUMBER, counted from 0. Typographic apostrophes become plain
ones, as in DPR's `normalize_question`.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import UserError
from storage.formats.ids import Unique, checked_id
from storage.formats.json_arrays import read_json_array
from storage.formats.lines import answer_list, plain_or_gzipped, read_lines, text_field
from storage.formats.records import AnswerRow, QrelRow, QueryRow, TextRow
from storage.formats.tsv_files import wrong_columns

FETCH = (
    "`pretrieve fetch natural_questions DIR` fetches it (https://github.com/facebookresearch/DPR, "
    "dpr/data/download_data.py, says where it is)"
)
PASSAGES = "psgs_w100.tsv"
JUDGED = {"train": "biencoder-nq-train.json", "dev": "biencoder-nq-dev.json"}
ANSWERED = {"dev_qa": "nq-dev.qa.csv", "test": "nq-test.qa.csv"}
UNJUDGED = frozenset(ANSWERED)
ANNOTATOR_SCORE = 1000  # of the passage that the annotators chose
NUM_ROWS: dict[tuple[str, str | None], int] = {
    ("corpus", None): 21_015_324,
    ("queries", "train"): 58_880,
    ("queries", "dev"): 6_515,
    ("queries", "dev_qa"): 8_757,
    ("queries", "test"): 3_610,
    ("qrels", "train"): 464_609,
    ("qrels", "dev"): 51_251,
}
"""The counts are those of DPR's tables 1 and 4; the qrels' are ir_datasets' of grades 1 and 2 (0.6.3)."""
CHECKSUMS = {  # of ir_datasets 0.6.3 (etc/downloads.json)
    "psgs_w100.tsv.gz": "612fe66e0b6b41ee28f806140226c563",
    "biencoder-nq-train.json.gz": "a1c927b5adae71388eb064329387709f",
    "biencoder-nq-dev.json.gz": "2640483dbe0df7ae29c6da419c551a80",
}


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the file of a part. A split's questions, judgements and answers are in one file."""
    if part == "documents":
        raise UserError("natural_questions has no `documents`; write `corpus` for both of the recipe's corpora")
    if part == "corpus":
        return [_file(path, PASSAGES)]
    known = JUDGED if part == "qrels" else JUDGED | ANSWERED
    if split is None or split not in known:
        what = "judgements of" if part == "qrels" else "split"
        raise UserError(f"{path}: natural_questions has no {what} {split!r}; there are {', '.join(known)}")
    return [_file(path, known[split])]


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the passages with their article's title."""
    file, seen = files(path, name, None)[0], Unique()
    for where, (doc_id, text, title) in _passages(file):
        if not text.strip() and not title.strip():
            raise UserError(f"{where}: passage {doc_id} is empty: expected a title or a text; remove the row")
        seen.add(checked_id(doc_id, where))
        yield {"doc_id": doc_id, "title": title, "text": text}
    seen.check(lambda: ((where, columns[0]) for where, columns in _passages(file)))


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Yield the split's questions."""
    for where, query_id, question in _questions(path, split):
        text = text_field(question, "question", where).replace("\u2019", "'")
        if not text.strip():
            raise UserError(f"{where}: the question is empty: expected a text; fetch the file again")
        yield {"query_id": query_id, "text": text}


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Yield the positive passages of a split's questions; one that a question names twice is yielded once."""
    files(path, "qrels", split)
    for where, query_id, question in _questions(path, split):
        grades: dict[str, int] = {}
        for passage in _positives(question, where):
            grade = 2 if passage.get("score") == ANNOTATOR_SCORE else 1
            grades.setdefault(_passage_id(passage, where), grade)
        for doc_id, grade in grades.items():
            yield {"query_id": query_id, "doc_id": doc_id, "grade": grade}


def has_answers(path: Path, split: str) -> bool:
    """Return True for every split of this data set."""
    return split in JUDGED | ANSWERED


def answers(path: Path, split: str) -> Iterator[AnswerRow]:
    """Yield the answers to a split's questions."""
    for where, query_id, question in _questions(path, split):
        if accepted := answer_list(question.get("answers"), where):
            yield {"query_id": query_id, "answers": accepted}


def _questions(path: Path, split: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield ("FILE line 17", id, fields) for each question."""
    file = files(path, "queries", split)[0]
    rows = read_json_array(file) if split in JUDGED else _answered(file)
    for number, (where, row) in enumerate(rows):
        yield where, f"{split}-{number}", row


def _answered(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, (question, literal) in _columns(file, 2):
        try:
            accepted = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UserError(f"{where}: expected a Python list of answers, found {literal[:60]!r}") from None
        yield where, {"question": question, "answers": accepted}


def _passages(file: Path) -> Iterator[tuple[str, list[str]]]:
    rows = _columns(file, 3)
    where, header = next(rows, (f"{file} line 1", []))
    if header != ["id", "text", "title"]:
        raise UserError(f"{where}: expected the header id, text, title (tabs between), found {str(header)[:60]}")
    return rows


def _columns(file: Path, expected: int) -> Iterator[tuple[str, list[str]]]:
    """Yield ("FILE line 17", columns) for each row. No column contains a line break."""
    lines = read_lines(file)
    for where, text in lines:
        try:
            columns = next(csv.reader([text], delimiter="\t"))
        except csv.Error as error:
            raise UserError(f"{where}: not a row of CSV ({error}): {text[:60]!r}") from None
        if len(columns) != expected:
            raise UserError(wrong_columns(where, len(columns), expected, text, lines))
        yield where, columns


def _positives(question: dict[str, Any], where: str) -> list[dict[str, Any]]:
    value = question.get("positive_ctxs")
    if not isinstance(value, list) or not all(isinstance(passage, dict) for passage in value):
        raise UserError(f"{where}: expected a list of passages in the field 'positive_ctxs', found {str(value)[:40]!r}")
    return value


def _passage_id(passage: dict[str, Any], where: str) -> str:
    """Return a passage's id: `passage_id` in DPR's Natural Questions, `psg_id` in its other collections."""
    value = passage.get("passage_id", passage.get("psg_id"))
    if not isinstance(value, str | int):
        raise UserError(f"{where}: a passage has no 'passage_id'; found {', '.join(sorted(passage)) or 'none'}")
    return checked_id(str(value), where)


def _file(path: Path, name: str) -> Path:
    if file := plain_or_gzipped(path / name):
        return file
    raise UserError(f"{path / name}: no such file, nor {name}.gz; {FETCH}")
