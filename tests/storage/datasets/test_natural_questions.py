"""DPR's files of Natural Questions in miniature, in its quoting and nesting, and what can be wrong with them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import has_qrels
from storage.datasets import natural_questions as reader
from tests.storage.complaints import complaint

PASSAGES = """id\ttext\ttitle
1\t"Aaron Aaron ( or ; ""Ahärôn"") is a prophet, high priest, and the brother of Moses"\tAaron
2\t"God at Sinai granted Aaron the priesthood for himself"\tAaron
21015324\t"committee was established before the building was opened, an optician,"\t"Limelight centre"
3\tno quotes here, 5"" across\t"""
PASSAGES += '"""Weird Al"" Yankovic"\n'


def context(number: str, score: int, **others: Any) -> dict[str, Any]:
    return {"title": "A title", "text": "Its text", "score": score, "title_score": 1, "passage_id": number} | others


def question(text: str, answers: list[str], positives: list[dict[str, Any]]) -> dict[str, Any]:
    negatives = [context("900", 0), context("901", 0)]
    return {
        "dataset": "nq_train_psgs_w100", "question": text, "answers": answers, "positive_ctxs": positives,
        "negative_ctxs": negatives, "hard_negative_ctxs": [context("902", 13.7)],
    }  # fmt: skip


TRAIN = [
    question("big little lies season 2 how many episodes", ["seven"],
             [context("18768923", 1000), context("2", 12.5), context("18768923", 9.1)]),
    question("who\u2019s in charge", ["the United States Civil Service Commission"], [context("21015324", 1000)]),
    question("nothing to learn from", [], []),
]  # fmt: skip
QA = [
    ("who got the first nobel prize in physics", "['Wilhelm Conrad Röntgen']"),
    ("when is the next deadpool movie being released", "['May 18 , 2018', \"it's out\"]"),
    ('who said "hi"', "['\"Weird Al\"']"),
]


def write_files(folder: Path) -> None:
    (folder / reader.PASSAGES).write_text(PASSAGES, encoding="utf-8")
    for name in reader.JUDGED.values():
        (folder / name).write_text(json.dumps(TRAIN, indent=4))
    for name in reader.ANSWERED.values():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows(QA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def test_passages_are_unquoted(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.texts(folder, "corpus")] == [
        ("1", "Aaron", 'Aaron Aaron ( or ; "Ahärôn") is a prophet, high priest, and the brother of Moses'),
        ("2", "Aaron", "God at Sinai granted Aaron the priesthood for himself"),
        ("21015324", "Limelight centre", "committee was established before the building was opened, an optician,"),
        ("3", '"Weird Al" Yankovic', 'no quotes here, 5"" across'),
    ]


def test_passages_equal_those_of_a_csv_reader(folder: Path) -> None:
    with (folder / reader.PASSAGES).open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file, delimiter="\t")  # as DPR reads it

    assert [[row["doc_id"], row["text"], row["title"]] for row in reader.texts(folder, "corpus")] == rows


def test_questions_are_called_by_their_place_and_have_plain_apostrophes(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.queries(folder, "train")] == [
        ("train-0", "big little lies season 2 how many episodes"),
        ("train-1", "who's in charge"),
        ("train-2", "nothing to learn from"),
    ]
    assert [tuple(row.values()) for row in reader.queries(folder, "test")] == [
        ("test-0", "who got the first nobel prize in physics"),
        ("test-1", "when is the next deadpool movie being released"),
        ("test-2", 'who said "hi"'),
    ]


def test_the_annotators_passage_has_the_higher_grade_and_none_is_repeated(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.qrels(folder, "train")] == [
        ("train-0", "18768923", 2),
        ("train-0", "2", 1),
        ("train-1", "21015324", 2),
    ]


def test_other_collections_name_their_passages_otherwise(folder: Path) -> None:
    ids = {"text": "x", "title": "y", "score": 1000, "psg_id": 525858}
    (folder / reader.JUDGED["dev"]).write_text(json.dumps([question("who", ["x"], [ids])]))

    assert [row["doc_id"] for row in reader.qrels(folder, "dev")] == ["525858"]


def test_answers_are_lists_and_a_question_without_one_has_none(folder: Path) -> None:
    assert list(reader.answers(folder, "dev")) == [
        {"query_id": "dev-0", "answers": ["seven"]},
        {"query_id": "dev-1", "answers": ["the United States Civil Service Commission"]},
    ]
    assert [row["answers"] for row in reader.answers(folder, "test")] == [
        ["Wilhelm Conrad Röntgen"],
        ["May 18 , 2018", "it's out"],
        ['"Weird Al"'],
    ]


def test_says_what_each_split_has(folder: Path) -> None:
    splits = ("train", "dev", "dev_qa", "test")
    assert [has_qrels("natural_questions", split) for split in splits] == [True, True, False, False]
    assert all(reader.has_answers(folder, split) for split in splits)
    assert (
        reader.files(folder, "answers", "test")
        == reader.files(folder, "queries", "test")
        == [folder / "nq-test.qa.csv"]
    )
    assert reader.files(folder, "qrels", "train") == [folder / "biencoder-nq-train.json"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('9\t"text that nobody closes\tTitle', "expected 3 columns with tabs between, found 2: "
         "'9\\t\"text that nobody closes\\tTitle'; the file ends here: if it is cut off, fetch it again"),
        ("9\ttext\ttitle\tmore", "expected 3 columns with tabs between, found 4: '9\\ttext\\ttitle\\tmore'"),
        ("9 9\ttext\ttitle", "expected an id without white space, found '9 9'"),
        ("9\t\t ", "passage 9 is empty: expected a title or a text; remove the row"),
        ("2\tagain\ttitle", "the id 2 is already in line 3; ids must be unique"),
        ("9\t" + "x" * 200_000 + "\ttitle", "not a row of CSV (field larger than field limit (131072)): "
         f"'9\\t{'x' * 58}'"),
    ],
)  # fmt: skip
def test_names_a_bad_passage(row: str, expected: str, folder: Path) -> None:
    with (folder / reader.PASSAGES).open("a") as file:
        file.write(row + "\n")

    assert complaint(lambda: reader.texts(folder, "corpus")) == f"{folder}/psgs_w100.tsv line 6: {expected}"


def test_names_a_file_of_passages_without_its_header(folder: Path) -> None:
    (folder / reader.PASSAGES).write_text("1\ttext\ttitle\n")

    assert complaint(lambda: reader.texts(folder, "corpus")) == (
        f"{folder}/psgs_w100.tsv line 1: expected the header id, text, title (tabs between), "
        "found ['1', 'text', 'title']"
    )


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"question": "who"}, "item 1: expected a list of passages in the field 'positive_ctxs', found 'None'"),
        ({"question": "who", "positive_ctxs": [{"text": "x"}]}, "item 1: a passage has no 'passage_id'; found text"),
        ({"question": "who", "positive_ctxs": ["x"]},
         "item 1: expected a list of passages in the field 'positive_ctxs', found \"['x']\""),
        ({}, "item 1: expected a list of passages in the field 'positive_ctxs', found 'None'"),
    ],
)  # fmt: skip
def test_names_a_bad_question(item: dict[str, Any], expected: str, folder: Path) -> None:
    (folder / reader.JUDGED["train"]).write_text(json.dumps([item]))

    assert complaint(lambda: reader.qrels(folder, "train")) == f"{folder}/biencoder-nq-train.json {expected}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("who\t['a'", "expected a Python list of answers, found \"['a'\""),
        ("who\t__import__('os').getcwd()", "expected a Python list of answers, found \"__import__('os').getcwd()\""),
        ("who\t'a'", "the answers must be a list of texts, found 'a'"),
        ("who", "expected 2 columns with tabs between, found 1: 'who'; the file ends here: if it is cut off, fetch it "
         "again"),
    ],
)  # fmt: skip
def test_names_a_bad_row_of_answers(row: str, expected: str, folder: Path) -> None:
    (folder / "nq-test.qa.csv").write_text(row + "\n")

    assert complaint(lambda: reader.answers(folder, "test")) == f"{folder}/nq-test.qa.csv line 1: {expected}"


def test_names_what_is_missing(folder: Path) -> None:
    assert complaint(lambda: reader.files(folder, "documents", None)).startswith(
        "natural_questions has no `documents`; write `corpus`"
    )
    assert complaint(lambda: reader.files(folder, "queries", "validation")) == (
        f"{folder}: natural_questions has no split 'validation'; there are train, dev, dev_qa, test"
    )
    assert complaint(lambda: reader.qrels(folder, "test")) == (
        f"{folder}: natural_questions has no judgements of 'test'; there are train, dev"
    )
    (folder / reader.PASSAGES).unlink()
    assert complaint(lambda: reader.texts(folder, "corpus")) == (
        f"{folder}/psgs_w100.tsv: no such file, nor psgs_w100.tsv.gz; {reader.FETCH}"
    )
