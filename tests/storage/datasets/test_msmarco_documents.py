"""The official files of MS MARCO document ranking in miniature."""

from pathlib import Path

import pytest

from storage.datasets import msmarco_documents as reader
from storage.datasets import num_rows, relevant_from
from storage.errors import UserError

FILES = {
    "msmarco-docs.tsv": (
        "D1555982\thttps://answers.yahoo.com/question\tThe hot glowing surfaces of stars\tScience Physics\n"
        "D301595\thttp://childparenting.about.com/\tDevelopmental Milestones\tSchool-Age Kids Growth\n"
        "D3\thttps://c.org/\t\t\n"
    ),
    "msmarco-doctrain-queries.tsv": "3\tAnother name for the primary visual cortex is\n5\tDefining alcoholism\n",
    "msmarco-doctrain-qrels.tsv": "3 0 D301595 1\n5 0 D3 1\n",
    "msmarco-docdev-queries.tsv": "2\tandrogen receptor define\n",
    "msmarco-docdev-qrels.tsv": "2 0 D1555982 1\n",
    "msmarco-test2019-queries.tsv": "1108939\twhat slows down the flow of blood\n",
    "2019qrels-docs.txt": "1108939 Q0 D1555982 0\n1108939 Q0 D3 1\n",
    "msmarco-test2020-queries.tsv": "1030303\twho is aziz hashim\n",
    "2020qrels-docs.txt": "1030303 0 D301595 3\n",
}


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def test_documents_have_title_and_body_or_their_url(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.texts(folder, "corpus")] == [
        ("D1555982", "The hot glowing surfaces of stars", "Science Physics"),
        ("D301595", "Developmental Milestones", "School-Age Kids Growth"),
        ("D3", "https://c.org/", ""),
    ]


@pytest.mark.parametrize(
    ("split", "queries", "qrels"),
    [
        ("train", ["3", "5"], [("3", "D301595", 1), ("5", "D3", 1)]),
        ("dev", ["2"], [("2", "D1555982", 1)]),
        ("dl19", ["1108939"], [("1108939", "D1555982", 0), ("1108939", "D3", 1)]),
        ("dl20", ["1030303"], [("1030303", "D301595", 3)]),
    ],
)
def test_reads_the_topics_of_every_split(
    split: str, queries: list[str], qrels: list[tuple[str, str, int]], folder: Path
) -> None:
    assert [row["query_id"] for row in reader.queries(folder, split)] == queries
    assert [tuple(row.values()) for row in reader.qrels(folder, split)] == qrels
    assert relevant_from("msmarco_documents", split) == 1


def test_names_what_is_missing_or_wrong(folder: Path) -> None:
    with pytest.raises(UserError) as error:
        reader.files(folder, "documents", None)
    assert str(error.value).startswith("msmarco_documents has no `documents`; write `corpus`")
    with pytest.raises(UserError) as error:
        reader.files(folder, "queries", "test")
    assert str(error.value) == f"{folder}: msmarco_documents has no split 'test'; its splits are train, dev, dl19, dl20"
    (folder / "2019qrels-docs.txt").write_text("1108939 D3 1\n")
    with pytest.raises(UserError) as error:
        list(reader.qrels(folder, "dl19"))
    assert str(error.value).endswith("line 1: expected query, 0 or Q0, document and grade, found '1108939 D3 1'")


def test_the_tracks_judged_topics_are_as_many_as_is_known() -> None:
    assert [num_rows("msmarco_documents", "queries", split) for split in ("dl19", "dl20")] == [43, 45]
