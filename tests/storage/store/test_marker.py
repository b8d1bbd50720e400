"""A folder is a store by its marker or its manifests; any other is refused, and nothing in it is touched."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from storage.errors import UserError
from storage.store.marker import MARKER, recognise, unwritable
from storage.store.store import Store
from tests import finished_runs
from tests.console import command, tree

KEY = "0123456789abcdef01234567"
COMMANDS = {
    "gc": ["gc", "--delete", "--store", "{}"],
    "verify": ["verify", "--aside", "--store", "{}"],
    "show": ["show", "ab", "--store", "{}"],
    "plan": ["plan", "small/beir", "--store", "{}"],
    "reproduce": ["reproduce", "quickstart", "--store", "{}"],
    "search": ["search", "ab", "words", "--store", "{}"],
    "export": ["export", "ab", "{}-out", "--store", "{}"],
    "export-run": ["export-run", "quickstart", "--to", "{}-out", "--store", "{}"],
    "compare": ["compare", "one", "other", "--store", "{}"],
    "evaluate": ["evaluate", "bm25", "--suite", "small", "--store", "{}"],
    "queries list": ["queries", "list", "--store", "{}"],
    "queries stats": ["queries", "stats", "x", "--store", "{}"],
    "queries diff": ["queries", "diff", "x", "y", "--store", "{}"],
    "queries export": ["queries", "export", "x", "{}-out", "--store", "{}"],
    "queries build": ["queries", "build", "quickstart", "--store", "{}"],
    "study status": ["study", "status", "--store", "{}"],
    "study run": ["study", "run", "--hours", "1", "--store", "{}"],
    "join": ["join", "--store", "{}"],
    "up": ["up", "--store", "{}"],
    "down": ["down", "--store", "{}"],
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's folder that is laid out as a store is, and is none."""
    folder = tmp_path / "home"
    for name in ("photos/2024/river.jpg", "extensions/abc/manifest.json", ".work/notes/a.txt", "letter.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"name": "of another program", "version": 3}')
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_is_no_store_is_refused_and_left_alone(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(home)

    ended = command(capsys, *(word.format(home) for word in COMMANDS[name]))

    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert f"{home}: this folder is not a store" in ended.err
    assert "nothing was touched" in ended.err
    assert tree(home) == before


def test_a_store_gets_its_marker_with_its_first_artifact(store: Store) -> None:
    assert not recognise(store.root)

    finished_runs.run(store, "one")

    assert json.loads((store.root / MARKER).read_text()) == {"format": 1}
    assert recognise(store.root)


def test_a_store_without_a_marker_is_recognised_by_its_manifests_and_is_marked_by_the_next_write(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.run(store, "one")
    (store.root / MARKER).unlink()

    assert command(capsys, "verify", "--store", store.root).code == 0
    assert not (store.root / MARKER).exists()
    finished_runs.run(store, "other", noise=0.5)
    assert (store.root / MARKER).exists()


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ([], False), (["lost+found/"], False), ([".locks/x", ".work/"], True), (["reports/x/report.json"], True),
        ([MARKER], True), ([f"foo/{KEY}/manifest.json", "letter.txt"], True),
    ],
)  # fmt: skip
def test_what_is_a_store(files: list[str], there: bool, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text('{"format": 1}')

    assert recognise(tmp_path) is there


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ('{"format": 2}', "has format 2, and this pretrieve knows format 1"),
        ("{", "damaged: expected"), ("[]", "damaged: expected"), ('{"format": true}', "damaged: expected"),
        ('{"format": "1"}', "damaged: expected"), ("[" * 100_000, "damaged: expected"), ("\x00", "damaged: expected"),
    ],
)  # fmt: skip
def test_a_marker_of_another_format_is_refused(marker: str, words: str, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(marker)

    with pytest.raises(UserError, match=words):
        Store.open(tmp_path)


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "file", "file/below"])
def test_a_path_that_cannot_be_a_store_is_one_line(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a letter")

    for words in (["verify"], ["reproduce", "quickstart"]):
        ended = command(capsys, *words, "--store", tmp_path / path)

        assert ended.code == 2, ended.err
        assert len(ended.lines) == 1
        assert ended.err.splitlines()[-1] == ended.lines[0]


def test_folders_of_others_in_a_store_are_named_and_left_alone(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.run(store, "one")
    for name in ("foo/bar/x", "split_corpus/mine/x", "reports/notes/x.txt", ".work/x/y"):
        (store.root / name).parent.mkdir(parents=True)
        (store.root / name).write_text("of others")

    listed = command(capsys, "gc", "--delete", "--older-than", "0s", "--store", store.root)
    verified = command(capsys, "verify", "--aside", "--store", store.root)

    assert listed.code == verified.code == 0, listed.err + verified.err
    assert "foo " in listed.out
    assert "split_corpus/mine" in listed.out
    assert listed.out.count("not an artifact") == 2
    assert (store.root / "foo/bar/x").exists()
    assert (store.root / "split_corpus/mine/x").exists()
    assert (store.root / "reports/notes/x.txt").exists()


@pytest.mark.parametrize("url", ["s3://bucket/store", "gs://bucket/store", "file:///tmp/store"])
def test_an_object_store_is_no_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    for name in ("queries build", "queries list", "down"):
        ended = command(capsys, *(word.format(url) for word in COMMANDS[name]))
        assert ended.code == 2
        assert "expected a folder of a POSIX file system" in ended.err

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_from_a_store_without_permission(tmp_path: Path) -> None:
    full, denied = (str(unwritable(tmp_path, os.strerror(number))) for number in (errno.ENOSPC, errno.EACCES))

    assert full == f"{tmp_path}: the disk is full; make room and run the same command again"
    assert denied.endswith("only commands that read work here; name another with --store")
