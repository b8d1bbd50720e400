"""The study's collection: SQuAD's rows, its folds, and the leads among the documents."""

import gzip
import json
from pathlib import Path

import pytest

from flows.study.data import write_data
from storage.conversions.squad_wikipedia import LAST_FILE
from storage.datasets import beir, vital_wikipedia
from tests.storage.conversions.test_squad_folds import check_partition
from tests.storage.conversions.test_squad_folds import collection as squad_qrels
from tests.storage.datasets.test_vital_wikipedia import ARTICLES, write_wheel

__all__ = ["squad_qrels"]


@pytest.fixture
def collections(squad_qrels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the collection `squad` and the file of the leads, in which collections are searched."""
    folder = tmp_path / "collections"
    folder.mkdir()
    (tmp_path / "qrels").rename((folder / "squad").mkdir() or folder / "squad" / "qrels")
    judged = [row for split in ("train", "dev") for row in beir.qrels(folder / "squad", split)]
    rows = {
        "corpus": [{"_id": row["doc_id"], "title": "", "text": f"About {row['doc_id']}."} for row in judged],
        "queries": [{"_id": row["query_id"], "text": "Où?", "answers": ["There"]} for row in judged],
        "documents": [{"_id": "Town_A", "title": "Town A", "text": "Über alles."}],
    }
    for name, values in rows.items():
        with gzip.open(folder / "squad" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
    write_wheel(folder, {row["title"]: row for row in ARTICLES})
    monkeypatch.setenv("PRETRIEVE_COLLECTIONS", str(folder))
    monkeypatch.chdir(folder)
    return folder


def test_the_collection_has_squads_rows_its_folds_and_the_leads(collections: Path, tmp_path: Path) -> None:
    target = tmp_path / "written"

    assert write_data(target)

    squad = collections / "squad"
    assert list(beir.texts(target, "corpus")) == list(beir.texts(squad, "corpus"))
    assert list(beir.queries(target, "dev")) == list(beir.queries(squad, "dev"))
    assert list(beir.qrels(target, "train")) == list(beir.qrels(squad, "train"))
    check_partition(target)
    leads = [
        {**row, "doc_id": f"wikipedia-{row['doc_id']}"} for row in vital_wikipedia.texts(collections, "corpus")
    ]  # fmt: skip
    assert list(beir.texts(target, "documents")) == [*beir.texts(squad, "documents"), *leads]


def test_a_complete_collection_is_left_and_an_incomplete_one_written_again(collections: Path, tmp_path: Path) -> None:
    target = tmp_path / "written"
    write_data(target)
    before = {path.name: path.read_bytes() for path in target.rglob("*.*") if path.is_file()}

    assert not write_data(target)
    (target / LAST_FILE).unlink()
    (target / "queries.jsonl").write_text("cut off")
    assert write_data(target)
    assert {path.name: path.read_bytes() for path in target.rglob("*.*") if path.is_file()} == before
    (target / "qrels/fold_20_dev.tsv").unlink()  # as in a collection from before there were ten folds
    assert write_data(target)
    assert {path.name: path.read_bytes() for path in target.rglob("*.*") if path.is_file()} == before
