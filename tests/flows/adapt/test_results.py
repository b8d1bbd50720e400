"""The folder of an adaptation's model."""

from __future__ import annotations

from pathlib import Path

from flows.adapt.decision import Decision
from flows.adapt.results import write_model
from storage.store.store import Store
from tests.tiny import save_backbone


def test_a_start_that_was_trained_again_in_its_folder_is_copied_again(tmp_path: Path, store: Store) -> None:
    start, decision = tmp_path / "start", Decision("start", "nothing was gained", {})
    start.mkdir()
    for spread in (0.1, 0.2):
        save_backbone(start, spread=spread, pooling="mean")
        model = write_model(tmp_path / "out", decision, {}, str(start), store)
        assert (model / "model.safetensors").read_bytes() == (start / "model.safetensors").read_bytes()
