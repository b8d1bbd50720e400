"""Ingesting: what is kept of a collection, and what is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.datasets import beir
from storage.errors import UserError
from storage.formats.ids import in_slice
from storage.rows import read_rows
from storage.store.sources import dataset
from storage.store.store import Store
from storage.tables import Documents, Qrels, Queries
from tasks.corpus.ingest import TextSelection, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.session import Session, session

CORPUS = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"Text {i}."} for i in range(40)]
QUERIES = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(40)]
QRELS = [(f"q{i}", f"d{i}", 1) for i in range(30)] + [("q30", "d0", 0), ("q5", "d31", 2), ("q5", "d32", 0)]


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUERIES))
    write_qrels(folder, QRELS)
    return folder


def write_qrels(folder: Path, rows: list[tuple[str, str, int]]) -> None:
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t{grade}" for query, document, grade in rows)]
    (folder / "qrels" / "dev.tsv").write_text("\n".join(lines) + "\n")


def documents(folder: Path, fraction: float | None = None) -> Artifact[Documents]:
    settings = TextSelection(reader="beir", name="corpus", fraction=fraction, complete=False)
    return ingest_corpus(dataset("beir", str(folder), "corpus"), settings=settings)


def topics(
    folder: Path, fraction: float | None = None, *, alone: bool = True
) -> tuple[Artifact[Queries], Artifact[Qrels]]:
    settings = Topics(reader="beir", split="dev", fraction=fraction, complete=False, relevant_alone=alone)
    queries = ingest_queries(dataset("beir", str(folder), "queries", "dev"), settings=settings)
    judged = dataset("beir", str(folder), "qrels", "dev")
    return queries, ingest_qrels(source=judged, corpus=documents(folder, fraction), queries=queries, settings=settings)


def rows(artifact: Artifact[Any], table: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in read_rows(artifact, table)]


def test_keeps_the_order_of_the_collection(collection: Path, store: Store, printed: list[str]) -> None:
    queries, qrels = topics(collection)

    assert rows(documents(collection), Documents) == [tuple(row.values()) for row in CORPUS]
    assert rows(queries, Queries) == [(f"q{i}", f"question {i}") for i in range(30)]  # q30 has no relevant document
    assert rows(qrels, Qrels) == [row for row in QRELS if row[0] != "q30"]
    assert "dev: 30 of 31 judged queries are used; the others have no relevant document" in printed


def test_a_whole_split_keeps_judged_queries_without_a_relevant_document(collection: Path, store: Store) -> None:
    queries, qrels = topics(collection, alone=False)

    assert rows(queries, Queries) == [(f"q{i}", f"question {i}") for i in range(31)]
    assert rows(qrels, Qrels) == QRELS


@pytest.mark.parametrize(("part", "count", "there"), [("corpus", 41, 40), ("queries", 30, 31), ("qrels", 34, 33)])
def test_refuses_what_should_be_complete_and_is_not(
    part: str, count: int, there: int, collection: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = None if part == "corpus" else "dev"
    monkeypatch.setattr(beir, "NUM_ROWS", {(part, split): count}, raising=False)
    size: dict[str, Any] = {"reader": "beir", "fraction": None, "complete": True}

    def ingest() -> None:
        corpus = ingest_corpus(
            dataset("beir", str(collection), "corpus"), settings=TextSelection(name="corpus", **size)
        )
        settings = Topics(split="dev", relevant_alone=False, **size)
        queries = ingest_queries(dataset("beir", str(collection), "queries", "dev"), settings=settings)
        ingest_qrels(
            source=dataset("beir", str(collection), "qrels", "dev"), corpus=corpus, queries=queries, settings=settings
        )

    with pytest.raises(UserError) as error:
        ingest()

    assert f"{there} rows; beir has {count}: fetch it again, or" in str(error.value)
    monkeypatch.setattr(beir, "NUM_ROWS", {(part, split): there})
    ingest()


def test_refuses_a_file_with_another_checksum(collection: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    file = collection / "corpus.jsonl"
    settings = TextSelection(reader="beir", name="corpus", fraction=None, complete=True)
    monkeypatch.setattr(beir, "CHECKSUMS", {"corpus.jsonl": "0" * 32}, raising=False)

    with pytest.raises(UserError, match=f"{file}: its md5 is [0-9a-f]{{32}}, that of the official file {'0' * 32}"):
        ingest_corpus(dataset("beir", str(collection), "corpus"), settings=settings)

    monkeypatch.setattr(beir, "CHECKSUMS", {"corpus.jsonl": hashlib.md5(file.read_bytes()).hexdigest()})
    assert ingest_corpus(dataset("beir", str(collection), "corpus"), settings=settings)


def test_a_slice_keeps_topics_of_its_own_documents(collection: Path, store: Store) -> None:
    queries, qrels = topics(collection, fraction=0.5)

    kept = {doc_id for doc_id, *_ in rows(documents(collection, 0.5), Documents)}
    assert kept == {row["_id"] for row in CORPUS if in_slice(row["_id"], 0.5)}
    assert 10 < len(kept) < 30
    relevant = {query for query, document, grade in QRELS if document in kept and grade > 0}
    assert {query_id for query_id, _ in rows(queries, Queries)} == relevant
    assert rows(qrels, Qrels) == [row for row in QRELS if row[0] in relevant and row[1] in kept]


def test_an_artifact_is_known_by_the_files_it_reads(collection: Path, store: Store) -> None:
    before = documents(collection), topics(collection)
    write_qrels(collection, QRELS[:-1])

    assert documents(collection).key == before[0].key
    assert topics(collection)[0].key != before[1][0].key


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("q99", "d1", 1), "1 of 32 query ids in the qrels, such as q99, are not in the collection"),
        (("q1", "d98", 1), "1 of 33 document ids in the qrels, such as d98, are not in the collection"),
    ],
)
def test_qrels_may_point_to_nothing_as_official_ones_do(
    extra: tuple[str, str, int], message: str, collection: Path, store: Store
) -> None:
    write_qrels(collection, [*QRELS, extra])
    lines: list[str] = []

    with session(Session(store, print_line=lines.append)):
        queries, qrels = topics(collection, alone=False)

    assert f"{collection}/qrels/dev.tsv: {message}" in lines
    assert (extra in rows(qrels, Qrels)) == (extra[0] != "q99")  # a document that nothing can find counts
    assert len(rows(queries, Queries)) == 31


@pytest.mark.parametrize(
    ("qrels", "what"),
    [([("q1", "d1", 1), ("q98", "d2", 1), ("q99", "d3", 1)], "2 of 3 query ids"),
     ([("q1", "d1", 1), ("q1", "x", 1), ("q1", "y", 0)], "2 of 3 document ids")],
)  # fmt: skip
def test_refuses_qrels_of_another_collection(
    qrels: list[tuple[str, str, int]], what: str, collection: Path, store: Store
) -> None:
    write_qrels(collection, qrels)

    with pytest.raises(UserError, match=f"{what} in the qrels, .* give the qrels of this collection"):
        topics(collection)


def test_refuses_a_split_without_a_relevant_document(collection: Path, store: Store) -> None:
    write_qrels(collection, [("q1", "d1", 0)])

    with pytest.raises(UserError) as error:
        topics(collection)

    assert str(error.value) == f"{collection}: the split 'dev' has no query with a relevant document"


def test_refuses_an_empty_slice(collection: Path, store: Store) -> None:
    with pytest.raises(UserError) as error:
        documents(collection, fraction=1e-9)

    assert str(error.value) == f"{collection}: the corpus has no documents in the slice (fraction 1e-09)"


def test_a_bad_row_leaves_nothing_that_looks_whole(collection: Path, store: Store) -> None:
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d1", "text": "again"}\n')

    with pytest.raises(UserError, match="line 41: the id d1 is already in line 2"):
        documents(collection)

    assert not list(store.root.rglob("*.parquet"))
