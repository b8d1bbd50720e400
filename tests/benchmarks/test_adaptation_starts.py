"""The weak starts of the adaptation's benchmark are made anew with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.adaptation_starts import RANDOM, SHAPE, start
from storage.store.sources import weights
from storage.store.store import Store

pytestmark = pytest.mark.slow


def test_random_weights_follow_from_the_seed(tmp_path: Path) -> None:
    store = Store.open_or_new(tmp_path / "store")
    folders = [start(RANDOM, seed, tmp_path / copy, store) for copy, seed in (("a", 1), ("b", 1), ("a", 2))]

    first, again, other = [(Path(folder) / "model.safetensors").read_bytes() for folder in folders]

    assert first == again
    assert first != other
    assert weights(folders[0]).reference == weights(folders[1]).reference != weights(str(SHAPE)).reference
    assert start(RANDOM, 1, tmp_path / "a", store) == folders[0]


def test_another_start_is_a_model(tmp_path: Path) -> None:
    assert start("package:some/model", 1, tmp_path, Store.open_or_new(tmp_path / "store")) == "package:some/model"
