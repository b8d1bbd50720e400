"""Rows of a few keys: in order, of several files, none where none is wanted."""

from pathlib import Path

import pytest

from storage import rows as stored
from storage.artifact import Artifact
from storage.rows import blocks_with_keys, first_rows, write_rows
from storage.tables import Qrels


@pytest.fixture
def qrels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact[Qrels]:
    monkeypatch.setattr(stored, "ROWS_PER_GROUP", 3)
    rows = [{"query_id": f"q{n % 4}", "doc_id": f"d{n}", "grade": n} for n in range(20)]
    write_rows(tmp_path, Qrels, rows[:11], "part-00000")
    write_rows(tmp_path, Qrels, rows[11:], "part-00001")
    return Artifact("qrels", "1", tmp_path)


def test_rows_of_the_wanted_keys_come_in_order(qrels: Artifact[Qrels]) -> None:
    blocks = list(blocks_with_keys(qrels, Qrels, "query_id", ["q3", "q1", "q9"], ["grade"]))

    rows = [tuple(row.values()) for block in blocks for row in block.to_pylist()]
    assert rows == [(f"q{n % 4}", n) for n in range(20) if n % 4 in (1, 3)]
    assert max(map(len, blocks)) <= 3


def test_the_first_row_of_a_key_is_kept(qrels: Artifact[Qrels]) -> None:
    results = first_rows(qrels, Qrels, "query_id", ["q3", "q0"], ["doc_id"])

    assert results == {"q0": {"query_id": "q0", "doc_id": "d0"}, "q3": {"query_id": "q3", "doc_id": "d3"}}
    assert list(results) == ["q0", "q3"]
    assert first_rows(qrels, Qrels, "query_id", [], ["doc_id"]) == {}
