"""A miniature collection in BEIR's layout, and everything that can be wrong with one."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from storage.datasets import beir, ignores_identical_ids
from tests.storage.complaints import complaint

CONVERT = "convert the file, for example by `iconv -f latin1 -t utf-8`, or remove it"
CORPUS = [
    {"_id": "d1", "title": "Sun", "text": "A star.", "metadata": {}},
    {"_id": "d2", "title": "", "text": "Ünïcode and\nlines."},
    {"_id": "d#3", "text": "No title at all."},
    {"_id": "d4", "title": "Only a title", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "what is the sun?"}, {"_id": "q2", "text": "lines?", "answers": ["x"]}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t2\nq2\td1\t0\n"


def write_files(folder: Path) -> None:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUERIES))
    (folder / "qrels" / "dev.tsv").write_text(QRELS)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


def test_reads_every_row_in_order(collection: Path) -> None:
    assert [tuple(row.values()) for row in beir.texts(collection, "corpus")] == [
        ("d1", "Sun", "A star."),
        ("d2", "", "Ünïcode and\nlines."),
        ("d#3", "", "No title at all."),
        ("d4", "Only a title", ""),
    ]
    assert list(beir.queries(collection, "dev")) == [
        {"query_id": "q1", "text": "what is the sun?"},
        {"query_id": "q2", "text": "lines?"},
    ]
    assert [tuple(row.values()) for row in beir.qrels(collection, "dev")] == [
        ("q1", "d1", 1),
        ("q2", "d2", 2),
        ("q2", "d1", 0),
    ]


def test_windows_files_and_a_last_blank_line_are_read(collection: Path) -> None:
    expected = [list(beir.texts(collection, "corpus")), list(beir.qrels(collection, "dev"))]
    for file in (collection / "corpus.jsonl", collection / "qrels" / "dev.tsv"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")

    assert [list(beir.texts(collection, "corpus")), list(beir.qrels(collection, "dev"))] == expected


def test_documents_without_title_and_text_are_kept_as_the_official_sets_have_them(collection: Path) -> None:
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d9", "title": " ", "text": "\\n"}\n')

    assert list(beir.texts(collection, "corpus"))[-1] == {"doc_id": "d9", "title": " ", "text": "\n"}


def test_a_document_with_the_querys_id_is_the_query() -> None:
    assert ignores_identical_ids("beir")


def test_reads_the_answers_of_the_queries_that_have_some(collection: Path) -> None:
    assert beir.has_answers(collection, "dev")
    assert list(beir.answers(collection, "dev")) == [{"query_id": "q2", "answers": ["x"]}]
    (collection / "qrels" / "others.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert not beir.has_answers(collection, "others")
    (collection / "queries.jsonl").write_text('{"_id": "q1", "text": "a", "answers": []}\n{"_id": "q2", "text": "b"}\n')
    assert not beir.has_answers(collection, "dev")
    (collection / "queries.jsonl").write_text('{"_id": "q1", "text": "a", "answers": "x"}\n')
    assert complaint(lambda: beir.answers(collection, "dev")) == (
        f"{collection}/queries.jsonl line 1: the answers must be a list of texts, found 'x'"
    )


def test_a_part_needs_only_its_files(collection: Path) -> None:
    qrels = collection / "qrels" / "dev.tsv"
    assert beir.files(collection, "corpus", None) == [collection / "corpus.jsonl"]
    assert beir.files(collection, "queries", "dev") == [collection / "queries.jsonl", qrels]
    assert beir.files(collection, "qrels", "dev") == [qrels]
    assert beir.files(collection, "answers", "dev") == [collection / "queries.jsonl"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{'_id': 1}", "not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ('["d9"]', "expected a JSON object, found list"),
        ('{"title": "", "text": "x"}', "the field '_id' is missing; found text, title"),
        ('{"_id": "d9", "title": "x"}', "the field 'text' is missing; found _id, title"),
        ('{"_id": 9, "text": "x"}', "the field '_id' must be text, found 9"),
        ('{"_id": "d9", "text": null}', "the field 'text' must be text, found null"),
        ('{"_id": "d9", "title": ["x"], "text": "x"}', "the field 'title' must be text, found [\"x\"]"),
        ('{"_id": "d 9", "text": "x"}', "expected an id without white space, found 'd 9'"),
        ('{"_id": "", "text": "x"}', "expected an id without white space, found ''"),
        ('{"_id": "d9", "text": "half \\ud83d"}', "the field 'text' has half a surrogate pair at character 5"),
        ('{"_id": "d2", "text": "again"}', "the id d2 is already in line 2; ids must be unique"),
        ("\udcff", f"not UTF-8 (byte 1 is 0xff); {CONVERT}"),
    ],
)  # fmt: skip
def test_names_a_bad_row_of_the_corpus(row: str, expected: str, collection: Path) -> None:
    with (collection / "corpus.jsonl").open("a", errors="surrogateescape") as file:
        file.write(row + "\n")

    assert complaint(lambda: beir.texts(collection, "corpus")) == f"{collection}/corpus.jsonl line 5: {expected}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"_id": "q3", "text": " "}', "query q3 is empty: expected a text; remove the row"),
        ('{"_id": "q1", "text": "again"}', "the id q1 is already in line 1; ids must be unique"),
    ],
)
def test_names_a_bad_query(row: str, expected: str, collection: Path) -> None:
    with (collection / "queries.jsonl").open("a") as file:
        file.write(row + "\n")

    assert complaint(lambda: beir.queries(collection, "dev")) == f"{collection}/queries.jsonl line 3: {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q1\td1\t1\n",
         " line 1: expected the header query-id, corpus-id, score (tabs between), found 'q1\\td1\\t1'"),
        ("", " line 1: expected the header query-id, corpus-id, score (tabs between), found ''"),
        ("query-id\tcorpus-id\tscore\n", ": the split is empty: expected judgements after the header"),
        (QRELS + "q1 0 d1 1\n", " line 5: expected 3 columns with tabs between, found 1: 'q1 0 d1 1'"),
        (QRELS + "q1\td3\thigh\n", " line 5: expected a whole number as score, found 'high'"),
        (QRELS + "q1\td3\t1.5\n", " line 5: expected a whole number as score, found '1.5'"),
        (QRELS + "q1\td3\t3000000000\n", " line 5: the score 3000000000 does not fit 32 bits"),
        (QRELS + "q1\td 3\t1\n", " line 5: expected an id without white space, found 'd 3'"),
        (QRELS + "q2\td2\t1\n", " line 5: query q2 and document d2 had grade 2 before; keep one row"),
    ],
)  # fmt: skip
def test_names_a_bad_row_of_the_qrels(text: str, expected: str, collection: Path) -> None:
    (collection / "qrels" / "dev.tsv").write_text(text)

    assert complaint(lambda: beir.qrels(collection, "dev")) == f"{collection}/qrels/dev.tsv{expected}"


def test_a_repeated_judgement_counts_once(collection: Path) -> None:
    (collection / "qrels" / "dev.tsv").write_text(QRELS + "q1\td1\t1\n")

    assert len(list(beir.qrels(collection, "dev"))) == 3


def test_says_where_a_gzip_file_is_cut_off(collection: Path) -> None:
    rows = "".join(json.dumps({"_id": f"d{i}", "text": os.urandom(60).hex()}) + "\n" for i in range(2000))
    (collection / "corpus.jsonl").unlink()
    (collection / "corpus.jsonl.gz").write_bytes(gzip.compress(rows.encode())[:100_000])

    message = complaint(lambda: beir.texts(collection, "corpus"))

    assert message.startswith(f"{collection}/corpus.jsonl.gz: the gzip file is cut off or damaged after line 1")
    assert "fetch it again" in message


def test_says_that_a_file_is_no_gzip_file(collection: Path) -> None:
    shutil.move(collection / "corpus.jsonl", collection / "corpus.jsonl.gz")

    message = complaint(lambda: beir.texts(collection, "corpus"))

    assert message.startswith(f"{collection}/corpus.jsonl.gz: the gzip file is cut off or damaged at its start")


def test_names_missing_files_and_what_there_is(collection: Path) -> None:
    assert complaint(lambda: beir.files(collection, "documents", None)) == (
        f"{collection}/documents.jsonl: no such file, nor documents.jsonl.gz; expected a folder in BEIR's layout; "
        "where the corpus is split and retrieved, write `corpus` in the recipe"
    )
    assert complaint(lambda: beir.files(collection, "qrels", "test")) == (
        f"{collection}/qrels/test.tsv: no such file, nor test.tsv.gz; the splits there are dev"
    )
    shutil.rmtree(collection / "qrels")
    without = complaint(lambda: beir.files(collection, "qrels", "dev"))
    assert "`pretrieve adapt` needs none" in without
    assert "--set queries.train=null --set queries.model=MODEL" in without


@pytest.mark.skipif("PRETRIEVE_COLLECTIONS" not in os.environ, reason="PRETRIEVE_COLLECTIONS is not set")
def test_reads_scifact() -> None:
    folder = Path(os.environ["PRETRIEVE_COLLECTIONS"]) / "scifact"

    assert sum(1 for _ in beir.texts(folder, "corpus")) == 5183
    assert sum(1 for _ in beir.qrels(folder, "train")) == 792
    assert next(iter(beir.queries(folder, "train")))["text"] == "0-dimensional biomaterials lack inductive properties."
