"""Shards of vectors: whole or absent, exact, and never with a value that is not finite."""

from pathlib import Path

import numpy as np
import pytest

from storage.vectors import read_vectors, vectors_path, write_vectors


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    vectors_PD = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    write_vectors(tmp_path, 12, vectors_PD)
    assert [path.name for path in tmp_path.iterdir()] == ["00012.npy"]
    assert np.array_equal(read_vectors(tmp_path, 12), vectors_PD)
    assert vectors_path(tmp_path, 12).read_bytes()[128:] == vectors_PD.tobytes()  # after the header, nothing else


def test_vectors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        write_vectors(tmp_path, 0, np.array([[np.nan]], np.float32))
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object, *_: object, **__: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(5, "disk is gone")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk is gone"):
        write_vectors(tmp_path, 0, np.zeros((1, 1), np.float32))
    assert not list(tmp_path.iterdir())
