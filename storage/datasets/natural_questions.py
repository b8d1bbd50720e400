"""Natural Questions in the form of DPR (Karpukhin et al. 2020; CC BY-NC 4.0), plain or gzipped.

psgs_w100.tsv: id, text, title of 100-word passages of Wikipedia, with tabs between and CSV's quoting.
biencoder-nq-train.json and biencoder-nq-dev.json: arrays of questions with `answers` and `positive_ctxs`, the passages
that are learned from; that of the annotators (score 1000) has grade 2, others that have an answer, found by BM25,
grade 1. nq-test.qa.csv, nq-dev.qa.csv: question, tab, a list of answers as Python writes it, and no judgements: a
passage that has an answer is relevant. The second is the split `dev_qa`, since it is not the questions of `dev`.
A question has no id: here it is SPLIT-PLACE, the place counted from 0. Its typographic apostrophes become plain ones,
as in DPR's `normalize_question`.
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
OF_ANNOTATORS = 1000  # the score of the passage that they chose
NUM_ROWS: dict[tuple[str, str | None], int] = {
    ("corpus", None): 21_015_324,
    ("queries", "train"): 58_880,
    ("queries", "dev"): 6_515,
    ("queries", "dev_qa"): 8_757,
    ("queries", "test"): 3_610,
    ("qrels", "train"): 464_609,
    ("qrels", "dev"): 51_251,
}
"""DPR's tables 1 and 4 say how many; the qrels are ir_datasets' of grade 1 and 2 (0.6.3, etc/metadata.json)."""
CHECKSUMS = {  # of ir_datasets 0.6.3 (etc/downloads.json)
    "psgs_w100.tsv.gz": "612fe66e0b6b41ee28f806140226c563",
    "biencoder-nq-train.json.gz": "a1c927b5adae71388eb064329387709f",
    "biencoder-nq-dev.json.gz": "2640483dbe0df7ae29c6da419c551a80",
}


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """The one file of a part: that of a split's questions has its judgements and answers too."""
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
    """The passages with their article's title."""
    file, seen = files(path, name, None)[0], Unique()
    for where, (doc_id, text, title) in _passages(file):
        if not text.strip() and not title.strip():
            raise UserError(f"{where}: passage {doc_id} is empty: expected a title or a text; remove the row")
        seen.add(checked_id(doc_id, where))
        yield {"doc_id": doc_id, "title": title, "text": text}
    seen.check(lambda: ((where, columns[0]) for where, columns in _passages(file)))


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """The split's questions."""
    for where, query_id, question in _questions(path, split):
        text = text_field(question, "question", where).replace("\u2019", "'")
        if not text.strip():
            raise UserError(f"{where}: the question is empty: expected a text; fetch the file again")
        yield {"query_id": query_id, "text": text}


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """The passages that a split's questions are learned from; one that a question names twice counts once."""
    files(path, "qrels", split)
    for where, query_id, question in _questions(path, split):
        found: dict[str, int] = {}
        for passage in _positives(question, where):
            grade = 2 if passage.get("score") == OF_ANNOTATORS else 1
            found.setdefault(_passage_id(passage, where), grade)
        for doc_id, grade in found.items():
            yield {"query_id": query_id, "doc_id": doc_id, "grade": grade}


def has_answers(path: Path, split: str) -> bool:
    """All splits have."""
    return split in JUDGED | ANSWERED


def answers(path: Path, split: str) -> Iterator[AnswerRow]:
    """The answers to a split's questions."""
    for where, query_id, question in _questions(path, split):
        if found := answer_list(question.get("answers"), where):
            yield {"query_id": query_id, "answers": found}


def _questions(path: Path, split: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Where each question stands, its id, and what the file says of it."""
    file = files(path, "queries", split)[0]
    rows = read_json_array(file) if split in JUDGED else _answered(file)
    for number, (where, row) in enumerate(rows):
        yield where, f"{split}-{number}", row


def _answered(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, (question, written) in _columns(file, 2):
        try:
            found = ast.literal_eval(written)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UserError(f"{where}: expected a Python list of answers, found {written[:60]!r}") from None
        yield where, {"question": question, "answers": found}


def _passages(file: Path) -> Iterator[tuple[str, list[str]]]:
    rows = _columns(file, 3)
    where, header = next(rows, (f"{file} line 1", []))
    if header != ["id", "text", "title"]:
        raise UserError(f"{where}: expected the header id, text, title (tabs between), found {str(header)[:60]}")
    return rows


def _columns(file: Path, expected: int) -> Iterator[tuple[str, list[str]]]:
    """The columns of each row, of which none goes over a line's end."""
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
    found = question.get("positive_ctxs")
    if not isinstance(found, list) or not all(isinstance(passage, dict) for passage in found):
        raise UserError(f"{where}: expected a list of passages in the field 'positive_ctxs', found {str(found)[:40]!r}")
    return found


def _passage_id(passage: dict[str, Any], where: str) -> str:
    """It is called so or so: by DPR's file of Natural Questions, and by those of its other collections."""
    value = passage.get("passage_id", passage.get("psg_id"))
    if not isinstance(value, str | int):
        raise UserError(f"{where}: a passage has no 'passage_id'; found {', '.join(sorted(passage)) or 'none'}")
    return checked_id(str(value), where)


def _file(path: Path, name: str) -> Path:
    if found := plain_or_gzipped(path / name):
        return found
    raise UserError(f"{path / name}: no such file, nor {name}.gz; {FETCH}")
