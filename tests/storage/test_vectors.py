"""Shards of vectors: whole or absent, exact, mapped into memory, and never with a value that is not finite."""

from pathlib import Path

import numpy as np
import pytest

from storage.errors import UserError
from storage.vectors import (
    Encoded,
    SparseRows,
    TokenRows,
    bytes_per_passage,
    is_finished,
    num_shards,
    read_shard,
    stored_views,
    write_shard,
)  # fmt: skip


def offsets(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def encoded(lengths: list[int], *, seed: int = 0, ids: bool = True) -> Encoded:
    """Texts with so many words and tokens each."""
    draw, total = np.random.default_rng(seed), sum(lengths)
    words = [np.sort(draw.choice(50, length, replace=False)) for length in lengths]
    return Encoded(
        dense=draw.standard_normal((len(lengths), 3), dtype=np.float32),
        lexical=SparseRows(
            offsets(lengths), np.concatenate([*words, []]).astype(np.int32), draw.random(total, dtype=np.float32)
        ),
        late=TokenRows(
            offsets(lengths),
            draw.standard_normal((total, 4), dtype=np.float32),
            draw.integers(0, 50, total if ids else 0).astype(np.int32),
        ),
    )


def same(one: Encoded, other: Encoded) -> bool:
    pairs = [(one.dense, other.dense)]
    for view, names in (("lexical", ("offsets", "ids", "values")), ("late", ("offsets", "ids", "vectors"))):
        pairs += [(getattr(getattr(one, view), name), getattr(getattr(other, view), name)) for name in names]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("lengths", [[3, 0, 5, 1], [0, 0], []])
def test_a_shard_comes_back_as_it_was(tmp_path: Path, lengths: list[int]) -> None:
    built = encoded(lengths)
    write_shard(tmp_path, 12, built)
    assert same(read_shard(tmp_path, 12), built)
    assert len(built) == len(lengths)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        "dense/00012.npy", "late/00012.ids.npy", "late/00012.offsets.npy", "late/00012.vectors.npy",
        "lexical/00012.ids.npy", "lexical/00012.offsets.npy", "lexical/00012.values.npy",
    ]  # fmt: skip
    assert (tmp_path / "dense/00012.npy").read_bytes()[128:] == built.dense.tobytes()  # after the header, nothing else


def test_one_view_is_read_alone_and_mapped(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, encoded([2, 3]))
    result = read_shard(tmp_path, 0, "late")
    assert result.views == ("late",)
    assert stored_views(tmp_path) == ("dense", "lexical", "late")
    assert isinstance(result.late.vectors, np.memmap)
    assert isinstance(result.late.rows(1, 2).vectors, np.memmap)  # no copy


@pytest.mark.parametrize("ids", [True, False])
def test_rows_are_taken_cut_and_joined(ids: bool) -> None:
    lengths = [3, 0, 5, 1, 0, 2]
    whole = encoded(lengths, ids=ids)
    rows = [whole.taken([number]) for number in range(6)]
    for number, length in enumerate(lengths):
        start = sum(lengths[:number])
        assert np.array_equal(rows[number].lexical.values, whole.lexical.values[start : start + length])
        assert np.array_equal(rows[number].late.vectors, whole.late.vectors[start : start + length])
    assert same(Encoded.concatenated(rows), whole)
    assert same(whole.taken([4, 0, 2, 2]), Encoded.concatenated([rows[4], rows[0], rows[2], rows[2]]))
    assert same(whole.rows(1, 4), Encoded.concatenated(rows[1:4]))
    assert same(whole.rows(4, 9), Encoded.concatenated(rows[4:]))
    assert same(whole.taken([]), whole.rows(0, 0))


@pytest.mark.parametrize("view", ["dense", "lexical", "late"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(tmp_path: Path, view: str, value: float) -> None:
    built = encoded([2, 1])
    array = built.dense if view == "dense" else built.lexical.values if view == "lexical" else built.late.vectors
    array.flat[-1] = value
    with pytest.raises(UserError, match=rf"shard 7 of the {view} view .* not finite"):
        write_shard(tmp_path, 7, built)
    assert not list(tmp_path.rglob("*.npy"))


def test_a_shard_is_finished_when_all_its_files_are_there(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, encoded([2, 1]))
    write_shard(tmp_path, 1, encoded([1]))
    views = ("dense", "lexical", "late")
    assert num_shards(tmp_path) == 2
    for path in sorted(tmp_path.rglob("00001*")):
        content = path.read_bytes()
        path.unlink()
        assert not is_finished(tmp_path, 1, views)
        assert num_shards(tmp_path) == 1
        path.write_bytes(content)
    assert is_finished(tmp_path, 1, views)
    assert num_shards(tmp_path / "nowhere") == 0


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object, *_: object, **__: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(5, "disk is gone")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk is gone"):
        write_shard(tmp_path, 0, encoded([1]))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_bytes_per_passage_are_those_of_the_arrays(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, encoded([2, 1, 0]))
    write_shard(tmp_path, 1, encoded([7]))
    assert bytes_per_passage(tmp_path) == {
        "dense": 12.0,
        "lexical": (10 * 8 + (4 + 2) * 8) / 4,  # an id and a value each; offsets, one more than rows a shard
        "late": (10 * 20 + (4 + 2) * 8) / 4,
    }
