"""The experiment of adaptation: which runs are finished."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import adaptation
from storage.errors import UserError

ROW = {
    "collection": "tiny", "start": "start", "seed": 1, "requested_size": "medium", "requested": 9,
}  # fmt: skip


def test_a_row_without_generator_and_teacher_is_that_of_a_run_with_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation, "RESULTS", tmp_path / "results.json")
    monkeypatch.setenv("PRETRIEVE_COLLECTIONS", str(tmp_path))
    (tmp_path / "results.json").write_text(json.dumps([ROW]))
    arguments = argparse.Namespace(
        folder=tmp_path, documents=9, start="start", size="medium", generator=None, teacher=None
    )

    adaptation.run(arguments, "tiny", 1)

    for name in ("generator", "teacher"):
        with pytest.raises((UserError, OSError), match="tiny"):  # it is begun, and the collection is not there
            adaptation.run(argparse.Namespace(**{**vars(arguments), name: "model"}), "tiny", 1)
