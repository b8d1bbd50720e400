"""Artifacts are complete or absent, whatever happens to the process or to the disk."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact, File, Manifest, key_of, source_of
from storage.errors import DamagedArtifact, UserError
from storage.files import full_disk_explained, writing
from storage.store.manifest_checks import find_damage
from storage.store.store import Store
from tests.storage.published import KEY, described


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Store, Artifact[object]]:  # type: ignore[type-var]
    """A store with one artifact of a data file and a log."""
    store = Store(tmp_path / "store")
    work = store.begin("made", KEY)
    (work / "data.bin").write_bytes(b"0123456789")
    (work / "logs").mkdir()
    (work / "logs" / "log.txt").write_text("a log")
    (work / "scratch").mkdir()
    (work / "scratch" / "checkpoint").write_text("not published")
    store.publish("made", KEY, described)
    return store, Artifact("made", KEY, store.folder("made", KEY))


def test_scratch_is_deleted_after_the_artifact_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting the records of many shards takes time, in which a kill would leave the build without them."""
    store, remove, published = Store(tmp_path / "store"), shutil.rmtree, []
    (store.begin("made", KEY) / "scratch").mkdir()

    def removing(path: str | Path, **keywords: Any) -> None:
        if Path(path).name.startswith("deleted-"):
            published.append(store.folder("made", KEY).is_dir())
        remove(path, **keywords)

    monkeypatch.setattr(shutil, "rmtree", removing)
    store.publish("made", KEY, described)

    assert published == [True]


def test_publishing_lists_data_and_logs_apart_and_drops_scratch(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored

    manifest = store.manifest("made", KEY)

    assert manifest is not None
    assert list(manifest.files) == ["data.bin"]
    assert list(manifest.logs) == ["logs/log.txt"]
    assert not (artifact.path / "scratch").exists()
    assert not store.work("made", KEY).exists()


def test_what_a_build_resumes_from_stays_where_publishing_fails(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    work = store.begin("made", KEY)
    (work / "shard.bin").write_bytes(b"finished")
    (work / "scratch").mkdir()
    (work / "scratch" / "record").write_text("of the shard")

    def full(*_: dict[str, File]) -> Manifest:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.publish("made", KEY, full)

    again = store.begin("made", KEY)
    assert (again / "shard.bin").read_bytes() == b"finished"
    assert (again / "scratch" / "record").read_text() == "of the shard"
    assert set(store.publish("made", KEY, described).files) == {"shard.bin"}
    assert [path.name for path in store.folder("made", KEY).iterdir() if path.name == "scratch"] == []


def test_what_a_build_resumes_from_stays_where_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    work = store.begin("made", KEY)
    (work / "scratch").mkdir()
    (work / "scratch" / "record").write_text("of the shard")

    def forbidden(*_: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", forbidden)
        with pytest.raises(OSError, match="Permission denied"):
            store.publish("made", KEY, described)

    assert (store.begin("made", KEY) / "scratch" / "record").read_text() == "of the shard"


def test_the_hash_covers_data_and_not_logs() -> None:
    one = described({"a": File(1, "x")}, {"logs/l": File(1, "y")})
    other_log = described({"a": File(1, "x")}, {"logs/l": File(2, "z")})
    other_data = described({"a": File(1, "w")}, {"logs/l": File(1, "y")})

    assert one.hash == other_log.hash
    assert one.hash != other_data.hash


def test_changed_bytes_are_named_and_the_artifact_is_quarantined(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    (artifact.path / "data.bin").write_bytes(b"0123456780")  # as long as before

    assert "data.bin: expected sha256" in find_damage(artifact.path)[0]
    with pytest.raises(DamagedArtifact, match=r"data\.bin: expected sha256.*run its recipe again"):
        store.check(artifact)
    assert store.manifest("made", KEY) is None
    assert not artifact.path.exists()


def test_a_missing_or_shorter_file_is_damage(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    (artifact.path / "data.bin").write_bytes(b"0123")

    assert store.manifest("made", KEY) is None
    assert "expected 10 bytes, it has 4" in find_damage(artifact.path)[0]
    (artifact.path / "data.bin").unlink()
    assert "missing" in find_damage(artifact.path)[0]


def test_a_folder_without_a_readable_manifest_is_damaged(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    (artifact.path / "manifest.json").write_text("{")

    assert store.manifest("made", KEY) is None
    assert find_damage(artifact.path)


def test_begin_keeps_complete_files_and_drops_unfinished_ones(tmp_path: Path) -> None:
    store = Store(tmp_path)
    work = store.begin("made", KEY)
    (work / "part-00000.parquet").write_text("whole")
    (work / ".part-00001.parquet.77.tmp").write_text("unfin")

    again = store.begin("made", KEY)

    assert [path.name for path in again.iterdir()] == ["part-00000.parquet"]


def test_an_incomplete_write_leaves_no_file(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with writing(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the disk is full"), full_disk_explained(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(UserError, match="the disk is full"), full_disk_explained(tmp_path):
        raise RuntimeError("I/O error: No space left on device (os error 28)")


def test_a_source_is_known_by_content_and_names_below_it_not_by_its_place(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "corpus.jsonl").write_text("{}")
    here, there = (source_of(tmp_path / folder, [tmp_path / folder / "corpus.jsonl"]) for folder in ("here", "there"))
    (tmp_path / "there" / "corpus.jsonl").write_text("{ }")
    changed = source_of(tmp_path / "there", [tmp_path / "there" / "corpus.jsonl"])

    assert here.key == there.key
    assert changed.key != here.key


def test_keys_differ_with_stage_version_settings_and_inputs() -> None:
    keys = {
        key_of("split", 1, {"n": 1}, {"a": "x/1"}),
        key_of("mine", 1, {"n": 1}, {"a": "x/1"}),
        key_of("split", 2, {"n": 1}, {"a": "x/1"}),
        key_of("split", 1, {"n": 2}, {"a": "x/1"}),
        key_of("split", 1, {"n": 1}, {"a": "x/2"}),
    }

    assert len(keys) == 5


def test_a_manifest_reads_back_as_it_was_written(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    manifest = store.manifest("made", KEY)

    assert manifest is not None
    assert json.loads((artifact.path / "manifest.json").read_text())["hash"] == manifest.hash
    assert Manifest.from_json(manifest.as_json()) == manifest


def test_what_a_killed_process_was_writing_is_not_published(tmp_path: Path) -> None:
    """Where a shard's process dies in the middle of a build, another makes the shard, in the same work folder."""
    store = Store(tmp_path)
    work = store.begin("made", KEY)
    (work / "part-00000.parquet").write_bytes(b"whole")
    (work / ".part-00000.parquet.77-deadbeef.tmp").write_bytes(b"ha")

    manifest = store.publish("made", KEY, described)

    assert list(manifest.files) == ["part-00000.parquet"]
    assert {path.name for path in store.folder("made", KEY).iterdir()} == {"manifest.json", "part-00000.parquet"}


def test_an_intact_artifact_that_another_process_has_published_meanwhile_stays(
    stored: tuple[Store, Artifact], tmp_path: Path
) -> None:
    """As where this process was stopped for longer than its lease lasts."""
    store, artifact = stored
    published = artifact.path.rename(tmp_path / "of another")
    (store.begin("made", KEY) / "data.bin").write_bytes(b"0123456789")

    def meanwhile(files: dict[str, File], logs: dict[str, File]) -> Manifest:
        published.rename(artifact.path)
        return described(files, logs)

    manifest = store.publish("made", KEY, meanwhile)

    assert list(manifest.logs) == ["logs/log.txt"]  # the other's
    assert store.manifest("made", KEY) == manifest
    assert not (store.root / ".damaged").exists()
    assert not list((store.root / ".work").iterdir())


def test_a_damaged_artifact_makes_room_for_the_one_that_is_published(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    (artifact.path / "data.bin").write_bytes(b"0123456780")
    (store.begin("made", KEY) / "data.bin").write_bytes(b"0123456789")

    manifest = store.publish("made", KEY, described)

    assert store.manifest("made", KEY) == manifest
    assert find_damage(artifact.path) == []
    assert len(list((store.root / ".damaged").iterdir())) == 1


def test_publishing_ends_where_a_damaged_artifact_cannot_be_moved(stored: tuple[Store, Artifact]) -> None:
    store, artifact = stored
    (artifact.path / "data.bin").unlink()
    (store.root / ".damaged").write_text("in the way")
    (store.begin("made", KEY) / "data.bin").write_bytes(b"0123456789")

    with pytest.raises(DamagedArtifact, match="missing; the artifact stays, since the store cannot be written"):
        store.publish("made", KEY, described)

    assert (store.work("made", KEY) / "data.bin").exists()
