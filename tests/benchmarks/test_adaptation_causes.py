"""The collections that tell the queries' part in an adaptation from the negatives' part, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import adaptation_causes_page
from benchmarks.adaptation_causes import write_trainings
from benchmarks.adaptation_causes_page import MARKS, PSEUDO, REAL, RESULTS, SYSTEMS, part, values, values_file
from benchmarks.adaptation_page import PAGE
from storage.conversions.beir_files import relevant, write_json_lines, write_qrels
from storage.datasets import beir


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Twenty documents; the first ten are relevant to train queries, eight of the others to queries of `dev`."""
    sentences = [[f"Word{n}x{of} met river{n} by hill{of}." for of in range(8)] for n in range(20)]
    texts = ({"_id": f"d{n}", "title": f"Title {n}", "text": " ".join(rows)} for n, rows in enumerate(sentences))
    write_json_lines(tmp_path / "corpus.jsonl.gz", texts)
    write_json_lines(tmp_path / "queries.jsonl.gz", ({"_id": f"q{n}", "text": f"what met river{n}"} for n in range(18)))
    for split, of in (("train", range(10)), ("dev", range(10, 18))):
        write_qrels(tmp_path / "qrels" / f"{split}.tsv", (relevant(f"q{n}", f"d{n}") for n in of))
    return tmp_path


def test_both_trainings_have_as_many_queries_of_the_same_documents_and_the_same_test(
    collection: Path, tmp_path: Path
) -> None:
    counts = write_trainings(collection, tmp_path / "out", 12)

    assert counts == {"train": 6, "test": 6}
    folders = [tmp_path / "out" / kind for kind in (PSEUDO, REAL)]
    train = [list(beir.qrels(folder, "train")) for folder in folders]
    assert [len({row["query_id"] for row in rows}) for rows in train] == [6, 6]
    documents = {row["doc_id"] for row in train[1]}
    assert {row["doc_id"] for row in train[0]} <= documents
    tested = [list(beir.qrels(folder, "heldout")) for folder in folders]
    assert tested[0] == tested[1]
    assert not documents & {row["doc_id"] for row in tested[1]}
    assert len({row["doc_id"] for row in beir.texts(folders[1], "corpus")}) == 12
    used = {row["query_id"] for row in train[1]}
    texts = {row["query_id"]: row["text"] for row in beir.all_queries(folders[1])}
    assert set(texts) == used | {row["query_id"] for row in tested[1]}
    assert all(text.startswith("what met") for text in texts.values())


def test_a_pseudo_query_is_not_in_the_text_of_its_training(collection: Path, tmp_path: Path) -> None:
    write_trainings(collection, tmp_path / "out", 12)

    texts = {row["doc_id"]: row["text"] for row in beir.texts(tmp_path / "out" / PSEUDO, "corpus")}
    originals = {row["doc_id"]: row["text"] for row in beir.texts(tmp_path / "out" / REAL, "corpus")}
    assert texts != originals
    assert all(len(texts[name]) <= len(originals[name]) for name in originals)


def test_the_page_has_the_table_of_the_kept_results() -> None:
    rows = json.loads(RESULTS.read_text())
    written = PAGE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]

    assert written == part(rows)
    for row in rows:
        assert pq.read_table(values_file(row)).num_rows == row["test"]


def test_differences_are_from_the_start_by_seeds_and_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_causes_page, "VALUES", tmp_path)
    rows = [
        {
            "collection": "squad",
            "documents": 9,
            "start": "package:tiny/model",
            "size": "one round",
            "seed": seed,
            "train": 3,
            "test": 4,
        }
        for seed in (1, 2)
    ]
    gains = {system: 0.1 * (number + 1) for number, (_, _, system) in enumerate(SYSTEMS)}
    for row in rows:
        start = np.array([0.1, 0.2, 0.3, 0.2]) + 0.01 * int(str(row["seed"]))
        columns = {"query_id": list("dbca"), "start": start} | {name: start + gain for name, gain in gains.items()}
        pq.write_table(pa.table(columns), values_file(row))

    lines = [line for line in part(rows).splitlines() if line.startswith("|")][2:]

    assert values(rows, "start")[0] == pytest.approx([0.21, 0.21, 0.31, 0.11])
    assert [line.split("|")[5].split()[0] for line in lines[1:]] == ["+0.100", "+0.200", "+0.300", "+0.400"]
    assert "differs from the one that was trained on pseudo-queries by +0.200 [+0.200, +0.200]" in part(rows)
    assert [line.split("|")[2].strip() for line in lines[1:]] == [PSEUDO, PSEUDO, REAL, REAL]
