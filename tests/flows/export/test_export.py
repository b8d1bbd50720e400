"""`pretrieve export` and its like write a complete folder where the user says, and nothing outside it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.export.export import file_in, new_folder
from storage.artifact import Artifact, File, hash_of
from storage.errors import UserError
from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.stage import stage
from tests import finished_runs
from tests.console import command, tree


@stage(version=1, table=Checkpoint)
def given_checkpoint(out: Path) -> None:
    """One of two files."""
    (out / "config.json").write_text("{}")
    (out / "model.safetensors").write_bytes(b"weights")


def rewrite(artifact: Artifact[Any], **changes: Any) -> None:
    """Change an artifact's manifest as a person who knows its rules could: the hash follows from the files."""
    path = artifact.path / "manifest.json"
    value = json.loads(path.read_text()) | changes
    value["hash"] = hash_of({name: File(**file) for name, file in value["files"].items()})
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside-of-export", "a/../../outside", "."])
def test_nothing_is_written_outside_the_folder(
    name: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = given_checkpoint()
    files = json.loads((model.path / "manifest.json").read_text())["files"]
    (model.path.parent / "outside").write_bytes(b"weights")
    rewrite(model, files=files | {name: files["model.safetensors"]})
    before = {name for name in tree(tmp_path) if not name.startswith("store")}

    ended = command(capsys, "export", model.key, tmp_path / "model", "--store", store.root)

    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert {name for name in tree(tmp_path) if not name.startswith("store")} == before
    with pytest.raises(UserError, match="within the output folder"):
        file_in(tmp_path / "model", name)


def test_of_two_exports_to_one_folder_one_is_refused(store: Store, tmp_path: Path) -> None:
    held, over = threading.Event(), threading.Event()

    def first() -> None:
        with new_folder(tmp_path / "model") as out:
            (out / "a").write_text("first")
            held.set()
            over.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    held.wait(60)
    with pytest.raises(UserError, match="another process is writing it"), new_folder(tmp_path / "model"):
        pass
    over.set()
    thread.join()

    assert tree(tmp_path / "model") == {"a": b"first"}
    with pytest.raises(UserError, match="expected a folder that does not exist yet"), new_folder(tmp_path / "model"):
        pass


def test_a_folder_that_was_filled_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def export() -> None:
        with new_folder(tmp_path / "model") as out:
            (out / "a").write_text("ours")
            (tmp_path / "model").mkdir()
            (tmp_path / "model" / "b").write_text("of others")

    with pytest.raises(UserError, match="cannot be written"):
        export()

    assert tree(tmp_path) == {"model": None, "model/b": b"of others"}


@pytest.mark.parametrize("target", ["a\0b", "x" * 300, "file/below", "file", "loop/below", "/proc/nothing/there", "/"])
def test_an_impossible_place_is_named_in_one_line(
    target: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = given_checkpoint()
    finished_runs.run(store, "one")
    (tmp_path / "file").write_text("a letter")
    (tmp_path / "loop").symlink_to("loop")

    for words in (["export", model.key, tmp_path / target], ["export-run", "one", "--to", tmp_path / target]):
        ended = command(capsys, *words, "--store", store.root)

        assert ended.code == 2, ended.err
        assert len(ended.err.splitlines()) == 1
        assert ended.out == ""


def test_a_page_that_cannot_be_written_is_named_in_one_line(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.run(store, "one")
    finished_runs.run(store, "two", noise=0.5)
    (tmp_path / "file").write_text("a letter")

    ended = command(capsys, "compare", "one", "two", "--store", store.root, "--html", tmp_path / "file" / "below")

    assert ended.code == 2, ended.err
    assert len(ended.err.splitlines()) == 1
    assert "file/below: cannot be written (" in ended.err
