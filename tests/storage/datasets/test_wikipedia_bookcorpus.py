"""Texts to pre-train on, as Hugging Face, WikiExtractor and the first copies of BookCorpus have them, in miniature."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import bookcorpus, wikipedia, wikipedia_bookcorpus, wikipedia_bookcorpus_msmarco
from storage.datasets.support.completeness import UNFINISHED
from tests.storage.complaints import complaint

ARTICLES = [
    {
        "id": "12",
        "url": "https://en.wikipedia.org/wiki/Anarchism",
        "title": "Anarchism",
        "text": "Anarchism is\n\nold.",
    },
    {"id": "39", "url": "https://en.wikipedia.org/wiki/Albedo", "title": "Albedo", "text": "Albedo is a share."},
    {"id": "303", "url": "https://en.wikipedia.org/wiki/Alabama", "title": "Alabama", "text": "Alabama is a state."},
]
EXPECTED = [(row["id"], row["title"], row["text"]) for row in ARTICLES]
SENTENCES = [f"sentence number {number} ." for number in range(2_500)]


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


def rows(texts: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in texts]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """As the hub's: two files, in a folder that is named after the dump."""
    for number, part in enumerate((ARTICLES[:2], ARTICLES[2:])):
        write_parquet(tmp_path / "wikipedia" / "20231101.en" / f"train-{number:05d}-of-00002.parquet", part)
    return tmp_path / "wikipedia"


def test_reads_the_articles_of_the_hubs_dump_in_order(dump: Path) -> None:
    assert rows(wikipedia.texts(dump, "corpus")) == rows(wikipedia.texts(dump, "documents")) == EXPECTED
    assert [file.name for file in wikipedia.files(dump, "corpus", None)] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]


def test_reads_what_wikiextractor_writes_without_redirects(tmp_path: Path) -> None:
    redirect = {"id": "10", "revid": "1", "url": "x", "title": "AccessibleComputing", "text": ""}
    for folder, part in (("AA", [redirect, *ARTICLES[:2]]), ("AB", ARTICLES[2:])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "wiki_00").write_text("".join(json.dumps(row) + "\n" for row in part))

    assert rows(wikipedia.texts(tmp_path, "corpus")) == EXPECTED


def test_an_article_in_two_files_is_an_error(dump: Path) -> None:
    write_parquet(dump / "20231101.en" / "train-00002-of-00002.parquet", ARTICLES[1:2])
    files = wikipedia.files(dump, "corpus", None)

    assert complaint(lambda: wikipedia.texts(dump, "corpus")) == (
        f"{files[2]} row 1: the id 39 is already in {files[0]} row 2; ids must be unique"
    )


def test_names_parquet_files_that_are_something_else_or_cut_off(dump: Path) -> None:
    file = wikipedia.files(dump, "corpus", None)[1]
    whole = file.read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:kept])
        message = complaint(lambda: wikipedia.texts(dump, "corpus"))
        assert message.startswith(f"{file}: not a Parquet file, or cut off or damaged at its start; fetch it again (")
    write_parquet(file, [{"id": "1", "text": "x"}])
    assert complaint(lambda: wikipedia.texts(dump, "corpus")) == (
        f"{file}: expected the columns id, title, text; title is not among id, text"
    )
    write_parquet(file, [{"id": "1", "title": None, "text": "x"}])
    assert complaint(lambda: wikipedia.texts(dump, "corpus")) == (
        f"{file} row 1: the field 'title' must be text, found null"
    )


def in_parquet(folder: Path) -> None:
    for number, part in enumerate((SENTENCES[:1_700], SENTENCES[1_700:])):
        file = folder / "plain_text" / f"train-{number:05d}-of-00002.parquet"
        write_parquet(file, [{"text": sentence} for sentence in part])


def in_lines(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "books_large_p1.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES[:900]) + "\n")
    second = "".join(f"{sentence} \n" for sentence in SENTENCES[900:])
    (folder / "books_large_p2.txt.gz").write_bytes(gzip.compress(second.encode()))


@pytest.mark.parametrize("write", [in_parquet, in_lines])
def test_consecutive_sentences_are_a_document(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)

    assert rows(bookcorpus.texts(tmp_path, "corpus")) == [
        ("0", "", "\n".join(SENTENCES[:1_000])),
        ("1", "", "\n".join(SENTENCES[1_000:2_000])),
        ("2", "", "\n".join(SENTENCES[2_000:])),
    ]
    assert not bookcorpus.has_titles(tmp_path, "corpus")


def test_several_collections_are_one_with_ids_that_say_whose_a_text_is(dump: Path) -> None:
    folder = dump.parent
    in_parquet(folder / "bookcorpus")
    ids = ["wikipedia-12", "wikipedia-39", "wikipedia-303", "bookcorpus-0", "bookcorpus-1", "bookcorpus-2"]

    assert [row["doc_id"] for row in wikipedia_bookcorpus.texts(folder, "corpus")] == ids
    assert len(wikipedia_bookcorpus.files(folder, "corpus", None)) == 4

    (folder / "msmarco").mkdir()
    (folder / "msmarco" / "collection.tsv").write_text("0\tA passage.\n")
    assert [row["doc_id"] for row in wikipedia_bookcorpus_msmarco.texts(folder, "documents")] == [*ids, "msmarco-0"]


def test_one_of_several_that_is_not_there_is_not_passed_over(dump: Path) -> None:
    assert complaint(lambda: wikipedia_bookcorpus.files(dump.parent, "corpus", None)) == (
        f"{dump.parent}/bookcorpus: no *.parquet and no books_large_p*.txt* there or below; {bookcorpus.FETCH}"
    )


@pytest.mark.parametrize("joined", [False, True])
def test_a_download_that_is_not_finished_is_not_read(dump: Path, joined: bool) -> None:
    folder, loader = (dump.parent, wikipedia_bookcorpus) if joined else (dump, wikipedia)
    in_parquet(dump.parent / "bookcorpus")
    (folder / UNFINISHED).mkdir()

    assert complaint(lambda: loader.files(folder, "corpus", None)) == (
        f"{folder}: the download is not finished; run `pretrieve fetch wikipedia{'_bookcorpus' * joined} {folder}` "
        f"again, or remove {folder}/.fetching to read what is there"
    )


@pytest.mark.parametrize("reader", [wikipedia, bookcorpus, wikipedia_bookcorpus, wikipedia_bookcorpus_msmarco])
def test_there_are_no_queries(reader: Any, tmp_path: Path) -> None:
    expected = (
        f"{tmp_path}: the loader {reader.__name__.rpartition('.')[2]} has no queries; use it for `pretrieve queries "
        "build`, or name it in the recipe's corpora.pretrain_from, and as dataset a collection with queries"
    )

    assert complaint(lambda: reader.queries(tmp_path, "train")) == expected
    assert complaint(lambda: reader.qrels(tmp_path, "train")) == expected
    assert complaint(lambda: reader.files(tmp_path, "queries", "train")) == expected
