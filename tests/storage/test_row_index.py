"""Rows and documents by id, against dictionaries, in tables of one file and of several."""

import random

import numpy as np
import pyarrow as pa
import pytest

from storage import row_index
from storage.row_index import PassageIndex, RowIndex

IDS = ["", "a", "d", "é", "D12345678", "D123456789", "D123456789#1", "x" * 100, "x" * 101, "\x00", "\x00\x00", "日本語"]


def in_chunks(ids: list[str], sizes: int) -> pa.ChunkedArray:
    return pa.chunked_array([ids[first : first + sizes] for first in range(0, len(ids), sizes)], pa.string())


@pytest.mark.parametrize("num_ids", [0, 1, 2, 3, 50, 5000])
@pytest.mark.parametrize("chunk", [7, 100_000])
@pytest.mark.parametrize("look_ups_per_id", [0, 10**9], ids=["by Arrow", "by hashes"])
def test_rows_equal_a_dictionarys(
    num_ids: int, chunk: int, look_ups_per_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "LOOK_UPS_PER_ID", look_ups_per_id)
    monkeypatch.setattr(row_index, "IDS_PER_BLOCK", 1000)
    draw = random.Random(num_ids)
    ids = [*IDS, *(f"D{draw.randrange(10**9)}#{n}" for n in range(num_ids))][:num_ids]
    draw.shuffle(ids)
    row_of = {passage: row for row, passage in reversed(list(enumerate(ids)))}
    wanted = [*draw.choices(ids, k=3 * num_ids), *IDS, "absent", *(f"D{n}#0" for n in range(40))]
    draw.shuffle(wanted)

    rows = RowIndex(in_chunks(ids, chunk)).rows(in_chunks(wanted, 11).slice(3))

    assert rows.tolist() == [row_of.get(passage, -1) for passage in wanted[3:]]
    assert rows.dtype == np.int64


@pytest.mark.parametrize("same", [7, 2**64 - 1])
def test_ids_of_one_hash_are_told_apart(same: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "_hashes", lambda ids: np.full(len(ids), same, np.uint64))
    index = RowIndex(pa.array(["a", "b", "c", "b"]))
    assert index.rows(pa.array(["c", "absent", "a", "b"])).tolist() == [2, -1, 0, 1]


def test_an_id_is_hashed_alike_in_every_block() -> None:
    """A hash must not depend on the neighbours' lengths, the chunk, or the position in its buffer."""
    ids = pa.array([f"{number}" * (1 + number % 5) for number in range(300)])
    apart = np.concatenate([row_index._hashes(pa.array([name])) for name in ids.to_pylist()])
    assert (row_index._hashes(ids) == apart).all()
    assert (row_index._hashes(ids.slice(13, 200)) == apart[13:213]).all()
    assert (row_index._hashes(ids.cast(pa.large_string())) == apart).all()
    assert len(np.unique(apart)) == 300


def test_the_first_missing_id_is_named() -> None:
    index = RowIndex(pa.array(["a", "b"]))
    assert index.require(pa.array(["b", "a"]), KeyError).tolist() == [1, 0]
    with pytest.raises(KeyError, match="'y'"):
        index.require(pa.chunked_array([["a"], ["y", "x"]]), KeyError)


def test_passages_know_their_documents() -> None:
    table = pa.table({"passage_id": ["b#0", "b#1", "a#0", "10"], "doc_id": ["b", "b", "a", "10"]})
    index = PassageIndex.of(table)
    assert index.documents.tolist() == [0, 0, 1, 2]
    assert index.doc_ids.to_pylist() == ["b", "a", "10"]
    assert index.document_index.rows(pa.array(["10", "c", "b"])).tolist() == [2, -1, 0]
    assert index.descending.tolist() == [1, 0, 2, 3]
    apart = index.as_documents()
    assert apart.documents.tolist() == [0, 1, 2, 3]
    assert apart.doc_ids.to_pylist() == table["passage_id"].to_pylist()
    assert apart.rows(table["passage_id"]).tolist() == [0, 1, 2, 3]
