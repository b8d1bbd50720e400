"""Conversions of publishers' files to BEIR's layout."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage.conversions import cisi, convert, medquad
from storage.conversions.archive_digest import files_digest
from storage.errors import UserError
from tests.flows.fetch.publisher import tar
from tests.storage.conversions import samples


def number(text: str) -> int:
    """Return the SHA-256 of a text as a number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of NAME.jsonl.gz."""
    return [json.loads(line) for line in gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()).split(b"\n")[:-1]]


def qrels(folder: Path, split: str) -> list[tuple[str, str]]:
    """Return the pairs of a split, all of which have grade 1."""
    header, *lines = (folder / f"qrels/{split}.tsv").read_text().splitlines()
    assert header == "query-id\tcorpus-id\tscore"
    assert all(line.endswith("\t1") for line in lines)
    return [(query_id, doc_id) for query_id, doc_id, _ in (line.split("\t") for line in lines)]


def converted(name: str, content: bytes, folder: Path) -> Path:
    """Return the folder of the collection that a publisher's file gives."""
    download = folder / "download"
    download.write_bytes(content)
    convert(name, download, folder / name)
    return folder / name


def test_squad_keeps_articles_by_their_sha256(tmp_path: Path) -> None:
    folder = converted("squad", samples.squad(), tmp_path)

    by_hash = sorted(samples.TOWNS, key=number)
    kept = sorted(by_hash[:10])
    assert [row["_id"] for row in rows(folder, "documents")] == kept
    assert {doc_id.split("#")[0] for _, doc_id in qrels(folder, "dev")} == set(by_hash[8:10])
    assert qrels(folder, "train") == [
        (f"{town}-{question}", f"{town}#{n}")
        for town in kept if town in by_hash[:8] for n, question in enumerate("ab")
    ]  # fmt: skip
    assert qrels(folder, "fold_1_dev") == qrels(folder, "dev")
    assert len({query_id for k in range(1, 6) for query_id, _ in qrels(folder, f"fold_{k}_dev")}) == 20


def test_squads_texts(tmp_path: Path) -> None:
    folder = converted("squad", samples.squad(), tmp_path)

    town = sorted(sorted(samples.TOWNS, key=number)[:10])[0]
    title, second = town.replace("_", " "), f"The river  of {town} is “wide”."
    assert rows(folder, "corpus")[:2] == [
        {"_id": f"{town}#0", "title": title, "text": f"{town} is old.", "document": town},
        {"_id": f"{town}#1", "title": title, "text": second, "document": town},
    ]
    assert rows(folder, "documents")[0] == {"_id": town, "title": title, "text": f"{town} is old.\n\n{second}"}
    assert rows(folder, "queries")[:2] == [
        {"_id": f"{town}-a", "text": f"Is {town} old?", "answers": ["old"]},
        {"_id": f"{town}-b", "text": "What is wide?", "answers": ["The river", "river"]},
    ]


def test_covid_qa(tmp_path: Path) -> None:
    folder = converted("covid_qa", samples.covid_qa(), tmp_path)

    assert rows(folder, "corpus") == [
        {"_id": "12", "title": "A study of salt", "text": "A study of salt \n\nSalt is white."},
        {"_id": "4", "title": "", "text": " \nIce is cold."},
    ]
    assert rows(folder, "queries") == [
        {"_id": "7", "text": "What is white?", "answers": ["Salt"], "document": "12"},
        {"_id": "3", "text": "What colour? ", "answers": ["white"], "document": "12"},
        {"_id": "5", "text": "What is cold?", "answers": ["Ice"], "document": "4"},
    ]
    assert qrels(folder, "dev") == [("7", "12"), ("3", "12"), ("5", "4")]


def test_scifact(tmp_path: Path) -> None:
    folder = converted("scifact", samples.scifact(), tmp_path)

    assert [number(claim) % 1000 < 150 for claim in ("2", "6", "11", "12")] == [False, False, True, False]
    assert qrels(folder, "dev") == [("11", "50")]
    assert qrels(folder, "train") == [("2", "60"), ("2", "50"), ("6", "50"), ("12", "60")]
    assert rows(folder, "queries") == [{"_id": n, "text": f"Claim {n}."} for n in ("2", "6", "11", "12")]
    assert rows(folder, "corpus")[1] == {"_id": "60", "title": "On 60", "text": "Text\u2028" + "60"}


SMART_CORPUS = [
    {"_id": "1", "title": "On salt and ice", "text": "Salt melts .5 of the ice."},
    {"_id": "3", "title": "", "text": "Ice is cold."},
]
SMART_QUERIES = [{"_id": "1", "text": "what melts ice ."}, {"_id": "2", "text": "what is cold ."}]


def test_cisi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = samples.cisi_files()
    monkeypatch.setattr(cisi, "SHA256_OF_FILES", files_digest((p, c.encode()) for p, c in files.items()))

    folder = converted("cisi", tar(files), tmp_path)

    assert rows(folder, "corpus") == SMART_CORPUS
    assert rows(folder, "queries") == SMART_QUERIES
    assert qrels(folder, "dev") == [("1", "1"), ("2", "3")]


def test_cranfield_numbers_queries_by_their_place(tmp_path: Path) -> None:
    folder = converted("cranfield", samples.cranfield(), tmp_path)

    assert rows(folder, "corpus") == SMART_CORPUS
    assert rows(folder, "queries") == SMART_QUERIES
    assert qrels(folder, "dev") == [("1", "1"), ("2", "3")]


def test_a_missing_file_of_cranfield_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"download: expected cran.qry, cranqrel in the archive"):
        converted("cranfield", tar({"cran.all.1400": "x"}), tmp_path)


def test_medquad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = samples.medquad_files()
    monkeypatch.setattr(medquad, "SHA256_OF_FILES", files_digest((p, c.encode()) for p, c in files.items()))

    folder = converted("medquad", samples.medquad(files), tmp_path)

    answers = {text: f"mq-{hashlib.sha256(text.encode()).hexdigest()[:16]}" for text in (
        "A virus.", "Spots and more.", "Spots\nand fever.\nMore.")}  # fmt: skip
    questions = {text: f"mqq-{hashlib.sha256(text.lower().encode()).hexdigest()[:16]}" for text in (
        "Who has lice ?", "What is pox ?", "Why pox ?")}  # fmt: skip
    assert rows(folder, "corpus") == [
        {"_id": answers[text], "title": title, "text": text} for title, text in (
            ("Lice", "A virus."), ("pox", "Spots and more."), ("Pox", "Spots\nand fever.\nMore."))
    ]  # fmt: skip
    assert rows(folder, "queries") == [{"_id": name, "text": text} for text, name in questions.items()]
    pox = [("What is pox ?", "Spots and more."), ("Why pox ?", "A virus."),
           ("What is pox ?", "Spots\nand fever.\nMore.")]  # fmt: skip
    expected = {("Who has lice ?", "A virus."): number("lice"), **dict.fromkeys(pox, number("pox"))}
    for split, is_dev in (("dev", True), ("train", False)):
        assert qrels(folder, split) == sorted(
            (questions[q], answers[a]) for (q, a), value in expected.items() if (value % 1000 < 120) == is_dev
        )


def test_another_archive_of_medquad_is_refused_and_deleted(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"download: not the expected files \(sha256 of their list \w{64}, expected 0c9"
    ):
        converted("medquad", samples.medquad(samples.medquad_files()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        converted("covid_qa", samples.covid_qa(), tmp_path / part)
        os.utime(tmp_path / "a/covid_qa/corpus.jsonl.gz", (0, 0))

    assert (tmp_path / "a/covid_qa/corpus.jsonl.gz").read_bytes()[:10].hex() == "1f8b08000000000002ff"
    for file in ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels/dev.tsv"):
        assert (tmp_path / "a/covid_qa" / file).read_bytes() == (tmp_path / "b/covid_qa" / file).read_bytes()


@pytest.mark.skipif("PRETRIEVE_COLLECTIONS" not in os.environ, reason="PRETRIEVE_COLLECTIONS names no collections")
def test_the_collections_have_the_splits_of_the_rules() -> None:
    collections = Path(os.environ["PRETRIEVE_COLLECTIONS"])
    if not (collections / "medquad").is_dir() or not (collections / "scifact").is_dir():
        pytest.skip(f"{collections} lacks medquad or scifact")

    foci = {row["_id"]: row["title"].lower() for row in rows(collections / "medquad", "corpus")}
    judged = {split: qrels(collections / "medquad", split) for split in ("train", "dev")}
    num_questions = Counter(doc_id for pairs in judged.values() for _, doc_id in pairs)
    for split, pairs in judged.items():  # an answer with several foci is titled by the first
        once = [foci[doc_id] for _, doc_id in pairs if num_questions[doc_id] == 1]
        assert {number(focus) % 1000 < 120 for focus in once} == {split == "dev"}
    for split in ("train", "dev"):
        assert {number(claim) % 1000 < 150 for claim, _ in qrels(collections / "scifact", split)} == {split == "dev"}
