"""MedQuAD (Ben Abacha and Demner-Fushman 2019; CC BY 4.0): questions and answers of websites of the NIH.

A distinct answer is a document, titled by its focus (a disease or a topic), and relevant to its questions. Three of the
twelve sources have questions only, because their answers are not free; these are not read. A pair is in `dev` if the
SHA-256 of its focus in lower case modulo 1,000 is less than 120, else in `train`: no focus is in both.
Ids begin with `mq-` for an answer and `mqq-` for a question, and have the first 16 digits of the SHA-256 of the text,
for questions in lower case. Where a text occurs more than once, the first focus and spelling are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from xml.etree import ElementTree

from storage.conversions.archive_digest import checked_files
from storage.conversions.beir_files import per_mille, relevant, write_json_lines, write_qrels

SHA256_OF_FILES = "0c998a31f0c13ac9886d6d963a055602c59f663115542a00c6bf2c1b98f3978f"
"""The digest of the list of the XML files (`files_digest`)."""
DEV_PER_MILLE = 120


class Pair(NamedTuple):
    """A question and its answer."""

    focus: str
    question: str
    answer: str

    @property
    def query_id(self) -> str:
        """The question's id."""
        return f"mqq-{_digits(self.question.lower())}"

    @property
    def doc_id(self) -> str:
        """The answer's id."""
        return f"mq-{_digits(self.answer)}"


def convert(download: Path, folder: Path) -> None:
    """Write answers, questions and judgements from an archive of the repository. Raises UserError for other files."""
    files = checked_files(download, _path, SHA256_OF_FILES)
    pairs = [pair for path in sorted(files) for pair in _pairs(files[path])]
    documents: dict[str, dict[str, str]] = {}
    queries: dict[str, dict[str, str]] = {}
    foci: dict[tuple[str, str], str] = {}
    for pair in pairs:
        documents.setdefault(pair.doc_id, {"_id": pair.doc_id, "title": pair.focus, "text": pair.answer})
        queries.setdefault(pair.query_id, {"_id": pair.query_id, "text": pair.question})
        foci.setdefault((pair.query_id, pair.doc_id), pair.focus.lower())
    write_json_lines(folder / "corpus.jsonl.gz", documents.values())
    write_json_lines(folder / "queries.jsonl.gz", queries.values())
    for split, is_dev in (("dev", True), ("train", False)):
        judged = sorted(ids for ids, focus in foci.items() if (per_mille(focus) < DEV_PER_MILLE) == is_dev)
        write_qrels(folder / f"qrels/{split}.tsv", (relevant(*ids) for ids in judged))


def _path(member: str) -> str | None:
    """Return the path in the repository of a member that is an XML file."""
    return str(PurePosixPath(*PurePosixPath(member).parts[1:])) if member.endswith(".xml") else None


def _pairs(content: bytes) -> Iterator[Pair]:
    """Yield the questions of a file that have an answer."""
    root = ElementTree.fromstring(content)
    for pair in root.iter("QAPair"):
        answer = _lines(pair.findtext("Answer", ""))
        if answer:
            yield Pair(root.findtext("Focus", ""), " ".join(pair.findtext("Question", "").split()), answer)


def _lines(text: str) -> str:
    """Return the lines that are not blank, with single blanks between words."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _digits(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
