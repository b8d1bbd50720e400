"""Small files in the formats of the publishers, with texts of our own."""

from __future__ import annotations

import json

from tests.flows.fetch.publisher import tar, zipped
from tests.flows.miniature import json_lines

TOWNS = [f"Town_{letter}" for letter in "ABCDEFGHIJKLMNOPQR"]
"""Names of 18 articles: 8 are not used, 2 are in `dev`, 8 in `train`."""
HEADER = "query-id\tcorpus-id\tscore\n"
COMMIT = "MedQuAD-1234"


def squad() -> bytes:
    """Return articles of two paragraphs with a question each, in no order; the second question has three answers."""
    return json.dumps({"version": "1.1", "data": [
        {"title": town, "paragraphs": [
            {"context": f"{town} is old. ",
             "qas": [{"id": f"{town}-a", "question": f"Is {town} old? ", "answers": [{"text": "old"}]}]},
            {"context": f"The river  of {town} is “wide”.",
             "qas": [{"id": f"{town}-b", "question": "What is wide?", "answers": [
                 {"text": text} for text in ("The river", "river", "The river ")]}]},
        ]} for town in reversed(TOWNS)
    ]}).encode()  # fmt: skip


def covid_qa() -> bytes:
    """Return two papers, one of which begins with a blank line, with three questions."""
    return json.dumps({"data": [
        {"paragraphs": [{"document_id": 12, "context": "A study of salt \n\nSalt is white.", "qas": [
            {"id": 7, "question": "What is white?", "answers": [{"text": " Salt", "answer_start": 17}],
             "is_impossible": False},
            {"id": 3, "question": "What colour? ", "answers": [{"text": "white", "answer_start": 25}]}]}]},
        {"paragraphs": [{"document_id": 4, "context": " \nIce is cold.", "qas": [
            {"id": 5, "question": "What is cold?", "answers": [{"text": "Ice", "answer_start": 2}]}]}]},
    ]}).encode()  # fmt: skip


def scifact() -> bytes:
    """Return BEIR's archive with the claims 2, 6, 11 and 12 in train and 1 in test. By its SHA-256 11 is in `dev`."""
    return zipped({
        "scifact/corpus.jsonl": "".join(
            f'{{"_id": "{n}", "title": "On {n}", "text": "Text\u2028{n}", "metadata": {{}}}}\n' for n in (50, 60)),
        "scifact/queries.jsonl": json_lines(
            {"_id": str(n), "text": f"Claim {n}.", "metadata": {"50": []}} for n in (2, 6, 11, 12, 1)),
        "scifact/qrels/train.tsv": HEADER + "2\t60\t1\n2\t50\t1\n6\t50\t1\n11\t50\t1\n12\t60\t1\n",
        "scifact/qrels/test.tsv": HEADER + "1\t50\t1\n",
    })  # fmt: skip


def medquad_files() -> dict[str, str]:
    """Return files of the repository by path; one question has no answer. By its SHA-256 the focus lice is in `dev`."""
    return {
        "2_B_QA/0000002.xml": _document("Pox", ("What is POX ?", "Spots\n and  fever.\n\n  More.  ")),
        "1_A_QA/0000001.xml": _document("pox", ("What is  pox ?", "Spots and more."), ("Why pox ?", "A virus.")),
        "10_C_QA/0000003.xml": _document("Lice", ("What is lice ?", ""), ("Who has lice ?", "A virus.")),
    }


def medquad(files: dict[str, str]) -> bytes:
    """Return an archive as it is packed for a commit."""
    return tar({f"{COMMIT}/{path}": content for path, content in files.items()} | {f"{COMMIT}/readme.txt": "About."})


def _document(focus: str, *pairs: tuple[str, str]) -> str:
    content = "".join(f"<QAPair><Question>{q}</Question><Answer>{a}</Answer></QAPair>" for q, a in pairs)
    return f'<?xml version="1.0"?><Document><Focus>{focus}</Focus><QAPairs>{content}</QAPairs></Document>'


SMART_DOCUMENTS = """.I 1
.T
On salt
and ice
.A
Doe, J.
.W
  Salt melts .5 of
the ice.
.X
1\t5\t1
.I 2
.T
Empty
.W
.I 3
.W
Ice is cold.
"""
"""Three documents, the second without a text; a line begins with a point that is no field."""
SMART_QUERIES = ".I 001\n.W\nwhat melts\nice .\n.I 004\n.W\nwhat is cold .\n"


def cisi_files() -> dict[str, str]:
    """Return the archive's files, with lines as Windows ends them; a judgement is there twice, one names document 2."""
    judgements = "".join(f"     {q}     {d}\t0\t0.000000\n" for q, d in ((1, 1), (1, 1), (1, 2), (2, 3)))
    files = {"CISI.ALL": SMART_DOCUMENTS, "CISI.QRY": SMART_QUERIES, "CISI.REL": judgements}
    return {name: content.replace("\n", "\r\n") for name, content in files.items()}


def cranfield() -> bytes:
    """Return an archive in which one document is not relevant."""
    judgements = "1 1 2 \n1 3 -1\n2 3 4\n"
    return tar({"cran.all.1400": SMART_DOCUMENTS, "cran.qry": SMART_QUERIES, "cranqrel": judgements})
