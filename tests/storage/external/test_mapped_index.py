"""The index of passages in files equals the one in memory, and takes memory that does not grow with them."""

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage import row_index
from storage.artifact import Artifact
from storage.external import mapped_index
from storage.external.mapped_index import MappedPassageIndex, write_passage_index
from storage.row_index import RowIndex
from storage.rows import write_table
from storage.tables import Passages
from tests.passage_index import read_index


def passages_of(folder: Path, passages: list[tuple[str, str]], rows_per_file: int = 7) -> Artifact[Passages]:
    """Passages of (passage id, document id), in several files."""
    folder.mkdir()
    for first in range(0, max(1, len(passages)), rows_per_file):
        rows = passages[first : first + rows_per_file]
        blank = {"title": [""] * len(rows), "text": ["text"] * len(rows)}
        numbers = {name: [1] * len(rows) for name in ("start", "end", "num_tokens")}
        ids = {"passage_id": [passage for passage, _ in rows], "doc_id": [document for _, document in rows]}
        table = pa.table({**ids, **blank, **numbers}, schema=Passages.schema)
        write_table(folder, Passages, table, f"part-{first:05d}")
    return Artifact("split_corpus", "key", folder)


def collection(documents: int) -> list[tuple[str, str]]:
    draw = random.Random(documents)
    return [
        (f"ü{name}#{number}", name)
        for name in map(str, draw.sample(range(10**6), documents))
        for number in range(draw.randint(1, 3))
    ]


@pytest.mark.parametrize("documents", [0, 1, 50])
def test_files_have_the_index_that_memory_has(documents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_index, "SORTED_AT_ONCE", 13)
    passages = passages_of(tmp_path / "passages", collection(documents))
    write_passage_index(tmp_path / "index", passages)
    index, expected = MappedPassageIndex(tmp_path / "index"), read_index(passages)

    assert index.ids.to_pylist() == expected.ids.to_pylist()
    assert index.doc_ids.to_pylist() == expected.doc_ids.to_pylist()
    for name in ("documents", "descending", "ranks", "rows_by_rank"):
        assert getattr(index, name).tolist() == getattr(expected, name).tolist(), name
    assert [part.tolist() for part in index._table] == [part.tolist() for part in expected._table]
    wanted = pa.array(["absent", *random.Random(1).choices(["other", *expected.ids.to_pylist()], k=300)])
    assert index.rows(wanted).tolist() == expected.rows(wanted).tolist()
    assert index.as_documents().rows(wanted).tolist() == expected.rows(wanted).tolist()
    assert index.document_index.rows(expected.doc_ids).tolist() == list(range(documents))
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "descending", "document", "documents", "passages", "ranks", "rows_by_rank",
    ]  # fmt: skip


def test_passages_of_a_document_may_be_apart(tmp_path: Path) -> None:
    passages = passages_of(tmp_path / "passages", [("a#0", "a"), ("b#0", "b"), ("a#1", "a"), ("c#0", "c")])
    write_passage_index(tmp_path / "index", passages)
    index = MappedPassageIndex(tmp_path / "index")

    assert index.documents.tolist() == [0, 1, 0, 2]
    assert index.doc_ids.to_pylist() == ["a", "b", "c"]
    assert index.document_index.rows(pa.array(["c", "a", "b", "d"])).tolist() == [2, 0, 1, -1]


def test_derived_rows_are_computed_by_the_first_process(tmp_path: Path) -> None:
    write_passage_index(tmp_path / "index", passages_of(tmp_path / "passages", collection(5)))

    first = MappedPassageIndex(tmp_path / "index").derive("rows", iter([np.array([3, 1]), np.array([2])]))
    second = MappedPassageIndex(tmp_path / "index").derive("rows", iter([np.array([9])]))

    assert first.tolist() == second.tolist() == [3, 1, 2]


def test_memory_does_not_grow_with_the_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_index, "SORTED_AT_ONCE", 2_000)
    monkeypatch.setattr(row_index, "IDS_PER_BLOCK", 1_000)

    def peak(documents: int, read: bool) -> int:
        folder = tmp_path / f"{documents}-{read}"
        passages = passages_of(folder, collection(documents), rows_per_file=2_000)
        tracemalloc.start()
        pa_before = pa.total_allocated_bytes()
        if read:
            index: RowIndex = read_index(passages)
        else:
            write_passage_index(folder / "index", passages)
            index = MappedPassageIndex(folder / "index")
        index.rows(index.ids[:100].cast(pa.string()))
        used = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - pa_before
        tracemalloc.stop()
        return used

    for read in (False, True):
        peak(10, read)  # what a first call imports is no growth
    growth = {read: peak(20_000, read) - peak(5_000, read) for read in (False, True)}
    assert growth[True] > 50 * 15_000  # so that the measure sees a table in memory, of 50 bytes a document at least
    assert growth[False] < 0.2 * growth[True]
