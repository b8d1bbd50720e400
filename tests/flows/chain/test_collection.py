"""The stages that read a collection: their keys change only where they read other texts than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.chain.collection import documents
from flows.recipe.suite_schema import Collection
from storage.store.sources import assuming_present
from storage.store.store import Store
from tasks.session import Session, session


@pytest.mark.parametrize(("name", "version"), [("rows.jsonl", None), ("rows.csv", 2), ("absent.csv", None)])
def test_a_loaders_version_is_in_the_key_if_it_is_not_the_first(name: str, version: int | None, tmp_path: Path) -> None:
    if not name.startswith("absent"):
        (tmp_path / name).write_text("text\n")
    collection = Collection(name="c", reader="texts", path=str(tmp_path / name), eval_split="dev")

    with session(Session(Store(tmp_path / "store"), planning=True)) as plan, assuming_present():
        documents(collection, "corpus")

    (job,) = plan.jobs.values()
    expected = {"reader": "texts", "name": "corpus", "fraction": None, "complete": False}
    assert job.values == expected | ({} if version is None else {"version": version})
