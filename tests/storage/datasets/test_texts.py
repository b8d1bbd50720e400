"""Texts in any form, as a collection without queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.datasets import texts as loader
from storage.datasets import version
from storage.datasets.support.collection_files import read_documents
from storage.errors import UserError

ROWS = [{"doc_id": "a", "title": "Rivers", "text": "Water flows."}, {"doc_id": "b", "title": "", "text": "He left."}]


def lines(id_field: str) -> str:
    return "".join(json.dumps({id_field: row["doc_id"], **row}) + "\n" for row in ROWS)


def test_every_form_gives_the_same_rows_and_names_what_was_read(tmp_path: Path) -> None:
    beir, folder, file = tmp_path / "beir", tmp_path / "folder", tmp_path / "rows.jsonl"
    for each in (beir, folder):
        each.mkdir()
    (beir / "corpus.jsonl").write_text(lines("_id"))
    (beir / "queries.jsonl").write_text("not read")
    file.write_text(lines("id"))
    (folder / "a.md").write_text("# Rivers\nWater flows.")
    (folder / "b.txt").write_text("He left.")
    (folder / "image.png").write_bytes(b"not read")

    assert list(loader.texts(beir, "corpus")) == list(loader.texts(file, "corpus")) == ROWS
    assert [row["text"] for row in loader.texts(folder, "documents")] == [row["text"] for row in ROWS]
    assert loader.files(beir, "corpus", None) == [beir / "corpus.jsonl"]
    assert loader.files(file, "corpus", None) == [file]
    assert loader.files(folder, "documents", None) == [folder / "a.md", folder / "b.txt"]
    assert list(loader.texts(folder, "corpus")) == list(read_documents(folder))


def test_only_forms_that_were_read_in_another_way_have_another_version(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("rows.jsonl", "rows.csv", "rows.tsv", "rows.parquet", "folder/a.txt"):
        (tmp_path / name).write_text("")

    names = ("rows.jsonl", "rows.csv", "rows.tsv", "rows.parquet", "folder")
    versions = {name: version("texts", tmp_path / name) for name in names}
    assert versions == {"rows.jsonl": 1, "rows.csv": 2, "rows.tsv": 2, "rows.parquet": 2, "folder": 4}
    assert version("beir", tmp_path) == 1


def test_there_are_no_queries(tmp_path: Path) -> None:
    for ask in (loader.queries, loader.qrels):
        with pytest.raises(UserError, match="the loader texts has no queries"):
            ask(tmp_path, "train")
