"""A manifest is evidence: what contradicts itself, its place or its files is named, moved away and built again."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import random
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact, File, InvalidManifest, Manifest
from storage.errors import DamagedArtifact, UserError
from storage.rows import read_table, write_rows
from storage.settings import Settings
from storage.store.manifest_checks import find_damage
from storage.store.store import Store
from storage.tables import Queries
from tasks.session import Session, session
from tasks.stage import stage
from tests.console import command
from tests.storage.published import KEY, described


class Count(Settings):
    number: int
    share: float | None = 0.1
    name: str = "é\u2028"
    nested: tuple[float | None, ...] = (1e-05, None, -0.0)
    seed: int = 3


@stage(version=1, table=Queries)
def count(out: Path, *, settings: Count) -> None:
    """Write so many queries."""
    write_rows(out, Queries, ({"query_id": str(n), "text": "text"} for n in range(settings.number)))
    (out / "logs").mkdir(exist_ok=True)
    (out / "logs" / "log.txt").write_text("a log")


def edited(artifact: Artifact[Any], *, signed: bool = False, **changes: Any) -> None:
    """Change fields of a manifest, as one of an earlier version that has no sha256, or with the sha256 it had."""
    path = artifact.path / "manifest.json"
    value = json.loads(path.read_text()) | changes
    if not signed:
        value.pop("sha256", None)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False))


def without_first_file(artifact: Artifact[Any]) -> None:
    edited(artifact, files={})


def listing(name: str) -> Callable[[Artifact[Any]], None]:
    """Have the manifest list one file more."""

    def change(artifact: Artifact[Any]) -> None:
        value = json.loads((artifact.path / "manifest.json").read_text())
        edited(artifact, files=value["files"] | {name: {"bytes": 1, "sha256": "ab" * 32}})

    return change


def linked(artifact: Artifact[Any]) -> None:
    path = artifact.path / "part-00000.parquet"
    shutil.move(path, artifact.path.parent / "elsewhere")
    path.symlink_to(artifact.path.parent / "elsewhere")


DAMAGES: dict[str, tuple[Callable[[Artifact[Any]], object], str]] = {
    "no manifest": (lambda built: (built.path / "manifest.json").unlink(), "the manifest is missing"),
    "shortened manifest": (lambda built: os.truncate(built.path / "manifest.json", 40), "not a manifest: Invalid JSON"),
    "a list": (lambda built: (built.path / "manifest.json").write_text("[]"), "not a manifest: Input should be an obj"),
    "another stage": (lambda built: edited(built, stage="other"), r"this is the manifest of other/\w+, expected that"),
    "another key": (lambda built: edited(built, key="ab" * 12), "this is the manifest of count/abab"),
    "a setting": (lambda built: edited(built, settings={"number": 3, "seed": 3}), "the key does not follow from stage"),
    "an input": (lambda built: edited(built, inputs={"queries": f"x/{'a' * 24}"}), "the key does not follow from"),
    "the version": (lambda built: edited(built, version=2), "the key does not follow from stage, version, settings"),
    "the hash": (lambda built: edited(built, hash="ab" * 32), "the hash does not follow from the list of files"),
    "fewer files listed": (without_first_file, "the hash does not follow from the list of files"),
    "the seed": (lambda built: edited(built, seed=4), "seed 4 is not that of the settings, 3"),
    "the schema": (lambda built: edited(built, schema="Quesies"), "schema Quesies is no table that this version knows"),
    "the rows": (lambda built: edited(built, rows=7), "says 7 rows, but the files have 2"),
    "a field too many": (lambda built: edited(built, more=1), "not a manifest: more: Unexpected keyword argument"),
    "no time": (lambda built: edited(built, built={}), "not a manifest: built: Value error, 'at' is None, expected"),
    "any field": (lambda built: edited(built, signed=True, rows=7), "not a manifest: its own sha256 is"),
    "a file's size": (lambda built: os.truncate(built.path / "part-00000.parquet", 7), r"expected \d+ bytes, it has 7"),
    "a missing file": (lambda built: (built.path / "part-00000.parquet").unlink(), "this file, but it is missing"),
    "a missing log": (lambda built: (built.path / "logs/log.txt").unlink(), "lists this file, but it is missing"),
    "an unlisted file": (lambda built: (built.path / "x.tmp").touch(), "x.tmp: the manifest does not list this file"),
    "an unlisted log": (lambda built: (built.path / "logs/x").touch(), "logs/x: the manifest does not list this file"),
    "a link": (linked, "part-00000.parquet: expected a regular file, not a link"),
    "a parent's file": (listing("../x"), r"lists '\.\./x', expected a path inside the artifact's folder"),
    "a file of the system": (listing("/etc/hostname"), "lists '/etc/hostname', expected a path inside"),
    "another system's path": (listing("..\\x"), "expected a path inside the artifact's folder"),
    "a name with a zero": (listing("x\0"), "expected a path inside the artifact's folder"),
}  # fmt: skip
CONTENTS = ("the rows",)  # seen where contents are read: by `verify`, and before a stage reads the artifact


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_is_named_and_the_artifact_is_built_again(kind: str, store: Store) -> None:
    built = count(settings=Count(number=2))
    change, message = DAMAGES[kind]
    change(built)

    (problem, *_) = [problem for problem in find_damage(built.path) if re.search(message, problem)]

    assert str(built.path) in problem
    assert len(problem.splitlines()) == 1
    assert (store.manifest(built.stage, built.key) is None) == (kind not in CONTENTS)
    if kind in CONTENTS:
        with pytest.raises(DamagedArtifact, match=message):
            store.check(built)
    printed: list[str] = []
    with session(Session(store, print_line=printed.append)) as again:
        assert read_table(count(settings=Count(number=2)), Queries).num_rows == 2
    assert [done.cached for done in again.done.values()] == [False]
    assert kind in CONTENTS or problem in printed[1]
    assert len(list((store.root / ".damaged").iterdir())) == 1
    assert find_damage(built.path) == []


@contextlib.contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """A block in which this process has as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_artifact_that_cannot_be_read_now_is_not_taken_for_damaged(store: Store) -> None:
    built = count(settings=Count(number=2))

    for use in (lambda: store.manifest(built.stage, built.key), lambda: store.quarantine_if_damaged(built.path)):
        with no_file_can_be_opened(), pytest.raises(UserError, match="more files are open than may be") as error:
            use()
        assert str(built.path) in str(error.value)

    assert store.check(built) == built.path
    assert not (store.root / ".damaged").exists()


@pytest.mark.parametrize("name", [".DS_Store", "logs/._log.txt", ".nfs0000000001", "Thumbs.db", ".fuse_hidden0001"])
def test_files_of_operating_systems_are_no_damage_and_are_not_published(name: str, store: Store) -> None:
    with session(Session(store, planning=True)):
        key = count(settings=Count(number=2)).key
    work = store.begin(count.name, key)
    for folder in (work, store.folder(count.name, key)):
        built = count(settings=Count(number=2)) if folder != work else None
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of the operating system")
        assert built is None or store.check(built) == folder

    manifest = store.manifest(count.name, key)
    assert manifest is not None
    assert (list(manifest.files), list(manifest.logs)) == (["part-00000.parquet"], ["logs/log.txt"])


def test_a_folder_that_cannot_be_listed_is_one_line_and_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = count(settings=Count(number=2))

    def fail(folder: Any) -> Any:
        if broken in (Path(folder), Path(folder).resolve()):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        return scandir(folder)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", fail)
    broken = built.path
    for use in (lambda: store.manifest(built.stage, built.key), lambda: store.quarantine_if_damaged(built.path)):
        with pytest.raises(UserError, match=f"{built.path}: the folder cannot be listed .Input/output error.; check"):
            use()
    broken = store.root
    ended = command(capsys, "verify", "--aside", "--store", store.root)

    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert f"{store.root}: input/output error; check the disk or the network file system" in ended.err
    broken = Path("none")
    assert store.check(built) == built.path


def test_two_folders_that_were_swapped_are_both_named_and_built_again(store: Store) -> None:
    two, three = (count(settings=Count(number=number)) for number in (2, 3))
    os.rename(two.path, store.root / "aside")
    os.rename(three.path, two.path)
    os.rename(store.root / "aside", three.path)

    assert f"this is the manifest of {three.reference}, expected that of {two.reference}" in find_damage(two.path)[0]
    with session(Session(store)) as again:
        tables = [read_table(count(settings=Count(number=number)), Queries) for number in (2, 3)]
    assert [len(table) for table in tables] == [2, 3]
    assert [done.cached for done in again.done.values()] == [False, False]
    assert len(list((store.root / ".damaged").iterdir())) == 2  # moved, not deleted


def test_one_damaged_manifest_leaves_the_others(store: Store) -> None:
    built, other = count(settings=Count(number=2)), count(settings=Count(number=3))
    (built.path / "manifest.json").write_bytes(b"\xff" * 100)

    results = dict(store.manifests())

    assert results[built.path] is None
    assert results[other.path] is not None


def test_the_manifest_of_an_earlier_version_is_accepted(store: Store) -> None:
    built = count(settings=Count(number=2))
    before = store.manifest(built.stage, built.key)
    edited(built)

    manifest = store.manifest(built.stage, built.key)

    assert manifest is not None
    assert before is not None
    assert manifest == before
    assert (before.sha256 is None, manifest.sha256) == (False, None)
    assert find_damage(built.path) == []


@pytest.mark.parametrize("signed", [True, False])
def test_no_flipped_bit_changes_a_manifest_unnoticed(signed: bool, store: Store) -> None:
    """Those of earlier versions have no sha256: only what they say of the build may change, which no result reads."""
    built = count(settings=Count(number=2))
    if not signed:
        edited(built)
    path = built.path / "manifest.json"
    content, before = path.read_bytes(), store.manifest(built.stage, built.key)
    assert before is not None
    unnoticed = []
    for byte in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[byte] ^= 1 << random.Random(byte).randrange(8)
        path.write_bytes(flipped)
        if not find_damage(built.path):
            unnoticed.append(Manifest.from_json(path.read_bytes()))

    assert all(dataclasses.replace(manifest, built=before.built) == before for manifest in unnoticed)
    assert not signed or unnoticed == []


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**30, -1, "\ud800", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
WRITTEN = json.loads(described({"a": File(1, "ab" * 32)}, {}).as_json())


@given(st.sampled_from(sorted(WRITTEN)), ANYTHING, st.booleans())
def test_no_content_of_a_manifest_is_an_error_of_the_program(name: str, value: Any, signed: bool) -> None:
    changed = WRITTEN | {name: value}
    if not signed:
        del changed["sha256"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made" / KEY
        path.mkdir(parents=True)
        (path / "manifest.json").write_text(json.dumps(changed))

        assert all(len(problem.splitlines()) == 1 for problem in find_damage(path))
        assert Store(Path(folder)).manifest("made", KEY) is None  # the file that it lists is not there


@given(st.binary() | st.text().map(str.encode) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_manifest_is_refused_with_one_error(content: bytes) -> None:
    with pytest.raises(InvalidManifest):
        Manifest.from_json(content)


def test_numbers_of_5000_digits_and_deep_lists_are_refused() -> None:
    for value in ("9" * 5000, "[" * 5000 + "]" * 5000):
        with pytest.raises(InvalidManifest, match="Invalid JSON"):
            Manifest.from_json(f'{{"settings": {value}}}')
