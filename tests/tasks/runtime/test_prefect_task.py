"""The table that Prefect's UI shows of an artifact."""

from __future__ import annotations

import json
from typing import Any

from storage.artifact import File, Manifest
from tasks.runtime.prefect_task import LETTERS_SHOWN, artifact_key, manifest_table


def table(**changes: Any) -> list[tuple[str, str, str]]:
    """Its rows, of a manifest with these changes."""
    values: dict[str, Any] = {
        "stage": "train", "version": 1, "key": "4f0c" * 6, "settings": {}, "inputs": {}, "files": {}, "logs": {},
        "hash": "ab" * 32, "rows": 3004, "schema": "Passages", "seed": 42,
        "built": {"seconds": 200.4, "at": "2026-11-21T13:43:00+00:00", "device": "cpu"},
    }  # fmt: skip
    return [(row["part"], row["name"], row["value"]) for row in manifest_table(Manifest(**values | changes))]


def test_what_is_asked_for_most_stands_first_with_units() -> None:
    rows = table(files={"part-00000.parquet": File(3 * 1024**2, "cd" * 32)})

    assert [row[1:] for row in rows[:3]] == [("rows", "3,004"), ("size", "3.0 MiB"), ("built in", "3 min 20 s")]
    assert ("artifact", "hash", "ab" * 32) in rows
    assert rows[-1] == ("file", "part-00000.parquet", "3.0 MiB, sha256 cdcdcdcdcdcd")


def test_settings_have_the_names_that_a_recipe_changes_them_by() -> None:
    rows = table(
        settings={"train": {"fit": {"learning_rate": 5e-05}, "chunk": None}, "contrasts": ["sum"], "title": "a  b"}
    )

    assert [row for row in rows if row[0] == "setting"] == [
        ("setting", "train.fit.learning_rate", "5e-05"), ("setting", "train.chunk", "null"),
        ("setting", "contrasts", '["sum"]'), ("setting", "title", "a b"),
    ]  # fmt: skip


def test_every_input_has_a_row_and_an_absent_one_has_none() -> None:
    rows = table(inputs={"pairs": "pair_contexts/01", "probe": None, "runs": ["search/02", "search/03"]})

    assert [row[1:] for row in rows if row[0] == "input"] == [
        ("pairs", "pair_contexts/01"), ("runs.0", "search/02"), ("runs.1", "search/03")
    ]  # fmt: skip


def test_the_table_stays_small_whatever_the_artifact_has() -> None:
    files = {f"part-{number:05d}.parquet": File(1024, "cd" * 32) for number in range(5000)}

    rows = table(files=files, settings={"text": "paper: cot_mae\n" * 1000})

    assert rows[-1] == ("file", "4970 more", "4.9 MiB")
    assert max(len(value) for _, _, value in rows) <= LETTERS_SHOWN
    assert len(json.dumps(rows)) < 8192


def test_a_key_is_what_prefect_takes_whatever_the_recipe_is_called() -> None:
    assert artifact_key("small/beir_Größe v2-metrics") == "small-beir-gr--e-v2-metrics"
