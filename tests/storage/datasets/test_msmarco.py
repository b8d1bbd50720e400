"""The official files of MS MARCO in miniature, everything that can be wrong with them, and the real topics."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import msmarco as reader
from storage.datasets import relevant_from
from storage.datasets.support.completeness import check_files
from tests.storage.complaints import complaint

CONVERT = "convert the file, for example by `iconv -f latin1 -t utf-8`, or remove it"
FILES = {
    "collection.tsv": "0\tThe presence of communication.\n1\tÃ¼mlaut, as it is.\n7\tA third passage, with  blanks.\n",
    "msmarco-docs.tsv": (
        "D1\thttps://a.org/\tA title\tIts body. And more.\n"
        "D2\thttps://b.org/\t\tA body alone.\n"
        "D3\thttps://c.org/\tA title alone\t\n"
        "D4\thttps://d.org/\t\t\n"
    ),
    "queries.train.tsv": "11\twhat is a passage\n12\tnever judged\n",
    "qrels.train.tsv": "11\t0\t7\t1\n11\t0\t0\t1\n",
    "queries.dev.small.tsv": "2\t Androgen receptor define\n",
    "qrels.dev.small.tsv": "2\t0\t1\t1\n",
    "msmarco-test2019-queries.tsv": "19335\tanthropological definition of environment\n99\tnever judged\n",
    "2019qrels-pass.txt": "19335 Q0 0 0\n19335 Q0 1 3\n",
    "msmarco-test2020-queries.tsv": "23849\tare naturalization records public information\n",
    "2020qrels-pass.txt": "23849 0 7 2\n23849 0 1 0\n",
}


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def test_passages_have_no_title(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.texts(folder, "corpus")] == [
        ("0", "", "The presence of communication."),
        ("1", "", "Ã¼mlaut, as it is."),
        ("7", "", "A third passage, with  blanks."),
    ]


def test_passages_have_the_titles_of_a_second_file(folder: Path) -> None:
    assert not reader.has_titles(folder, "corpus")
    (folder / "para.title.txt").write_text("0\tA project\n1\t-\n7\tThird \n")

    assert [row["title"] for row in reader.texts(folder, "corpus")] == ["A project", "", "Third "]
    assert reader.has_titles(folder, "corpus")
    assert reader.has_titles(folder, "documents")
    assert reader.files(folder, "corpus", None) == [folder / "collection.tsv", folder / "para.title.txt"]
    assert reader.files(folder, "documents", None) == [folder / "msmarco-docs.tsv"]


def test_a_passage_may_be_without_a_row_of_titles(folder: Path) -> None:
    (folder / "para.title.txt").write_text("1\tIts own\n")

    assert [row["title"] for row in reader.texts(folder, "corpus")] == ["", "Its own", ""]


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        ("1\tx\n0\ty\n", "line 2: collection.tsv has no passage 0 here; expected RocketQA's titles, in its order"),
        ("9\tx\n", "line 1: collection.tsv has no passage 9 here; expected RocketQA's titles, in its order"),
        ("0\tx\n1", "line 2: expected 2 columns with tabs between, found 1: '1'; the file ends here: if it is cut off, "
         "fetch it again"),
    ],
)  # fmt: skip
def test_names_titles_that_are_not_of_these_passages(titles: str, expected: str, folder: Path) -> None:
    (folder / "para.title.txt").write_text(titles)

    assert complaint(lambda: reader.texts(folder, "corpus")) == f"{folder}/para.title.txt {expected}"


def test_documents_have_title_and_body_or_their_url(folder: Path) -> None:
    assert [tuple(row.values()) for row in reader.texts(folder, "documents")] == [
        ("D1", "A title", "Its body. And more."),
        ("D2", "", "A body alone."),
        ("D3", "A title alone", ""),
        ("D4", "https://d.org/", ""),
    ]


@pytest.mark.parametrize(
    ("split", "queries", "qrels"),
    [
        ("train", ["what is a passage", "never judged"], [("11", "7", 1), ("11", "0", 1)]),
        ("dev", [" Androgen receptor define"], [("2", "1", 1)]),
        ("dl19", ["anthropological definition of environment", "never judged"],
         [("19335", "0", 0), ("19335", "1", 3)]),
        ("dl20", ["are naturalization records public information"], [("23849", "7", 2), ("23849", "1", 0)]),
    ],
)  # fmt: skip
def test_reads_the_topics_of_every_split(
    split: str, queries: list[str], qrels: list[tuple[str, str, int]], folder: Path
) -> None:
    assert [row["text"] for row in reader.queries(folder, split)] == queries
    assert [tuple(row.values()) for row in reader.qrels(folder, split)] == qrels


def test_a_related_passage_of_the_tracks_is_not_relevant() -> None:
    assert [relevant_from("msmarco", split) for split in reader.TOPICS] == [1, 1, 2, 2]


def test_a_part_needs_only_its_files(folder: Path) -> None:
    assert reader.files(folder, "corpus", None) == [folder / "collection.tsv"]
    assert reader.files(folder, "documents", None) == [folder / "msmarco-docs.tsv"]
    assert reader.files(folder, "qrels", "dl20") == [folder / "2020qrels-pass.txt"]
    assert reader.files(folder, "queries", "train") == [folder / "queries.train.tsv", folder / "qrels.train.tsv"]


def test_all_dev_queries_serve_where_the_small_file_is_missing(folder: Path) -> None:
    (folder / "queries.dev.tsv").write_text("1\tanother\n2\tandrogen\n")
    assert reader.files(folder, "queries", "dev")[0] == folder / "queries.dev.small.tsv"
    (folder / "queries.dev.small.tsv").unlink()

    assert [row["query_id"] for row in reader.queries(folder, "dev")] == ["1", "2"]


def test_names_what_is_missing_and_where_to_fetch_it(tmp_path: Path) -> None:
    assert complaint(lambda: reader.texts(tmp_path, "corpus")) == (
        f"{tmp_path}/collection.tsv: no such file, nor gzipped (.gz); {reader.FETCH}"
    )
    assert complaint(lambda: reader.queries(tmp_path, "test")) == (
        f"{tmp_path}: msmarco has no split 'test'; its splits are train, dev, dl19, dl20"
    )
    (tmp_path / "qrels.dev.small.tsv").write_text(FILES["qrels.dev.small.tsv"])
    assert complaint(lambda: reader.queries(tmp_path, "dev")).startswith(
        f"{tmp_path}/queries.dev.small.tsv: no such file, queries.dev.tsv, nor gzipped"
    )


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("collection.tsv", "8", "expected 2 columns with tabs between, found 1: '8'; the file ends here: if it is "
         "cut off, fetch it again"),
        ("collection.tsv", "8\ta\tb", "expected 2 columns with tabs between, found 3: '8\\ta\\tb'"),
        ("collection.tsv", "8 9\ta", "expected an id without white space, found '8 9'"),
        ("collection.tsv", "\ta", "expected an id without white space, found ''"),
        ("collection.tsv", "8\t ", "document 8 is empty: expected a title or a text; remove the row"),
        ("collection.tsv", "1\tagain", "the id 1 is already in line 2; ids must be unique"),
        ("collection.tsv", "8\t\udcff", f"not UTF-8 (byte 3 is 0xff); {CONVERT}"),
        ("msmarco-docs.tsv", "D9\thttps://d.org/\ttitle",
         "expected 4 columns with tabs between, found 3: 'D9\\thttps://d.org/\\ttitle'; the file ends "
         "here: if it is cut off, fetch it again"),
        ("msmarco-docs.tsv", "D9\t\t\t", "document D9 is empty: expected a title or a text; remove the row"),
        ("msmarco-docs.tsv", "D2\tu\tt\tb", "the id D2 is already in line 2; ids must be unique"),
        ("queries.dev.small.tsv", "3\t", "query 3 is empty: expected a text; remove the row"),
        ("queries.dev.small.tsv", "3 text\n3\ttext", "expected 2 columns with tabs between, found 1: '3 text'"),
        ("queries.dev.small.tsv", "2\tagain", "the id 2 is already in line 1; ids must be unique"),
        ("qrels.dev.small.tsv", "2\t1\t1", "expected query, 0 or Q0, passage and grade, found '2\\t1\\t1'"),
        ("qrels.dev.small.tsv", "2\t1\t1\t1", "expected query, 0 or Q0, passage and grade, found '2\\t1\\t1\\t1'"),
        ("qrels.dev.small.tsv", "2 0 9 high", "expected a whole number as grade, found 'high'"),
        ("qrels.dev.small.tsv", "2 0 9 3000000000", "expected a whole number as grade, found '3000000000'"),
        ("qrels.dev.small.tsv", "2 0 1 0", "query 2 and passage 1 had grade 1 before; keep one row"),
    ],
)  # fmt: skip
def test_names_a_bad_row(name: str, row: str, expected: str, folder: Path) -> None:
    with (folder / name).open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(row + "\n")
    number = len(FILES[name].splitlines()) + 1
    read: dict[str, Callable[[], Any]] = {
        "collection.tsv": lambda: reader.texts(folder, "corpus"),
        "msmarco-docs.tsv": lambda: reader.texts(folder, "documents"),
        "queries.dev.small.tsv": lambda: reader.queries(folder, "dev"),
        "qrels.dev.small.tsv": lambda: reader.qrels(folder, "dev"),
    }

    assert complaint(read[name]) == f"{folder}/{name} line {number}: {expected}"


def test_a_repeated_judgement_counts_once(folder: Path) -> None:
    (folder / "qrels.train.tsv").write_text(FILES["qrels.train.tsv"] * 2)

    assert len(list(reader.qrels(folder, "train"))) == 2


def test_an_empty_split_is_named(folder: Path) -> None:
    (folder / "qrels.train.tsv").write_text("\n")

    assert complaint(lambda: reader.qrels(folder, "train")) == (
        f"{folder}/qrels.train.tsv: the split is empty: expected judgements"
    )


@pytest.mark.skipif("PRETRIEVE_COLLECTIONS" not in os.environ, reason="PRETRIEVE_COLLECTIONS is not set")
@pytest.mark.parametrize("split", ["dev", "dl19", "dl20"])
def test_the_real_topics_are_as_many_as_is_known(split: str) -> None:
    folder = Path(os.environ["PRETRIEVE_COLLECTIONS"]) / "msmarco-topics"
    qrels = list(reader.qrels(folder, split))
    judged = {row["query_id"] for row in qrels}
    result = {row["query_id"] for row in reader.queries(folder, split)}

    assert judged <= result
    assert len(judged) == reader.NUM_ROWS["queries", split]
    assert len(qrels) == reader.NUM_ROWS["qrels", split]
    relevant = {row["query_id"] for row in qrels if row["grade"] >= relevant_from("msmarco", split)}
    assert relevant == judged
    check_files("msmarco", reader.files(folder, "queries", split))
