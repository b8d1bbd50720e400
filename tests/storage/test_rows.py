"""Rows go to Parquet and come back, whole or not at all."""

import tempfile
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import rows as module
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import (
    num_rows,
    parts,
    read_foreign_parquet,
    read_rows,
    read_table,
    rows_at,
    write_rows,
    write_table,
)
from storage.tables import Pairs, Queries


def artifact(folder: Path) -> Artifact[Queries]:
    return Artifact("made", "key", folder)


def test_rows_come_back_in_the_order_of_their_parts(tmp_path: Path) -> None:
    write_rows(tmp_path, Queries, [{"query_id": "c", "text": "3"}], "part-00001")
    assert write_rows(tmp_path, Queries, ({"query_id": q, "text": q} for q in "ab")) == 2

    assert [row["query_id"] for row in read_rows(artifact(tmp_path), Queries)] == ["a", "b", "c"]
    assert read_table(artifact(tmp_path), Queries, ["text"])["text"].to_pylist() == ["a", "b", "3"]
    assert num_rows(tmp_path) == 3


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    write_rows(tmp_path, Queries, [])

    assert read_table(artifact(tmp_path), Queries).schema.equals(Queries.schema)


def test_a_null_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Queries\.text has a null"):
        write_rows(tmp_path, Queries, [{"query_id": "a", "text": None}])

    assert list(tmp_path.iterdir()) == []


def test_rows_that_fail_half_way_leave_no_file(tmp_path: Path) -> None:
    def rows() -> object:
        yield {"query_id": "a", "text": "b"}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_rows(tmp_path, Queries, rows())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_equal_rows_are_equal_bytes(tmp_path: Path) -> None:
    rows = [{"passage_id": "p", "text": "t", "queries": ["x", "y"], "passages": []}]
    for name in ("one", "two"):
        write_rows(tmp_path / name, Pairs, rows)

    one, two = (parts(tmp_path / name)[0].read_bytes() for name in ("one", "two"))
    assert one == two


def test_arrow_tables_are_cast_to_the_schema(tmp_path: Path) -> None:
    write_table(tmp_path, Queries, pa.table({"text": ["t"], "query_id": pa.array(["q"], pa.large_string())}))

    assert read_table(artifact(tmp_path), Queries).to_pylist() == [{"query_id": "q", "text": "t"}]


def test_rows_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.rows.ROWS_PER_GROUP", 3)
    for part in range(2):
        rows = ({"query_id": f"q{part * 7 + n}", "text": str(part * 7 + n)} for n in range(7))
        write_rows(tmp_path, Queries, rows, f"part-{part:05d}")
    inputs = artifact(tmp_path)

    assert rows_at(inputs, Queries, [12, 0, 7, 5], ["text"])["text"].to_pylist() == ["12", "0", "7", "5"]
    assert rows_at(inputs, Queries, [], ["text"]).num_rows == 0


@given(st.lists(st.integers(0, 25), max_size=6), st.integers(0, 70), st.none() | st.integers(0, 70))
def test_some_rows_are_read_from_the_groups_that_hold_them(sizes: list[int], first: int, last: int | None) -> None:
    rows = [{"query_id": str(n), "text": "x"} for n in range(sum(sizes))]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_PER_GROUP", 4)
        stream = iter(rows)
        for number, size in enumerate(sizes):
            write_rows(Path(name), Queries, islice(stream, size), f"part-{number:05d}")
        groups: list[int] = []
        real = pq.ParquetFile.iter_batches
        watch = lambda self, **given: groups.extend(given["row_groups"]) or real(self, **given)  # noqa: E731
        patch.setattr(pq.ParquetFile, "iter_batches", watch)

        assert list(read_rows(artifact(Path(name)), Queries, first, last)) == rows[first:last]
        assert len(groups) <= (len(rows[first:last]) + 6) // 4 + len(sizes)


def test_a_part_that_was_added_is_read(tmp_path: Path) -> None:
    for number in range(3):
        write_rows(tmp_path, Queries, [{"query_id": str(number), "text": "x"}], f"part-{number:05d}")
        assert [row["query_id"] for row in read_rows(artifact(tmp_path), Queries)] == list("012"[: number + 1])


def test_another_programs_text_that_is_not_utf8_is_named_with_its_row_and_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_PER_FOREIGN_BATCH", 4)
    texts = pa.array([b"a", b"b", b"c", b"d", b"e", b"f\xff"]).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"id": pa.array(list("abcdef")), "text": texts}), tmp_path / "texts.parquet")
    rows = read_foreign_parquet(tmp_path / "texts.parquet", ["id", "text"])

    assert [next(rows)[1]["text"] for _ in range(4)] == list("abcd")
    with pytest.raises(
        UserError, match=r"texts\.parquet row 6: the column 'text' is not readable .*; expected text in"
    ):
        next(rows)


def test_long_texts_are_written_and_read_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHARACTERS_PER_GROUP", 100)
    sizes = [10, 80, 5, 300, 20, 20, 90]
    write_rows(tmp_path, Queries, ({"query_id": str(n), "text": "x" * size} for n, size in enumerate(sizes)))
    read: list[int] = []
    batches = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, **given: object) -> object:
        for batch in batches(self, **given):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)

    assert [len(row["text"]) for row in read_rows(artifact(tmp_path), Queries)] == sizes
    assert read == [3, 1, 2, 1]  # 97 characters with the ids, 301, 42, 91
