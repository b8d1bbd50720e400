"""Large files are read once, whatever the number of processes; a changed one is read again."""

import json
import os
from pathlib import Path

import pytest

from storage import files, source_hashes
from storage.source_hashes import sha256_of_source


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large, and has not changed for long; the cache is of our own."""
    monkeypatch.setattr(source_hashes, "LARGE", 4)
    monkeypatch.setattr(source_hashes, "SETTLED_SECONDS", -1.0)
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus.tsv"
    write(path, b"one two", 1_000_000_000)
    return path


def write(path: Path, content: bytes, seconds: int) -> None:
    path.write_bytes(content)
    os.utime(path, (seconds, seconds))


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_hashes", {})


def notes(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "sha256").glob("*"))


def test_it_is_not_read_again(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sha256_of_source(large)
    another_process(monkeypatch)
    [note] = notes(tmp_path)
    note.write_text(json.dumps(json.loads(note.read_text()) | {"sha256": "from the note"}))

    assert first == files.hashlib.sha256(b"one two").hexdigest()
    assert sha256_of_source(large) == "from the note"


@pytest.mark.parametrize(
    ("content", "seconds"), [(b"one  two", 1_000_000_000), (b"two one", 1_000_000_001), (b"two one", 1_000_000_000)]
)
def test_a_change_is_seen(content: bytes, seconds: int, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256_of_source(large)
    another_process(monkeypatch)

    write(large, content, seconds)

    assert sha256_of_source(large) == files.hashlib.sha256(content).hexdigest()


def test_what_has_just_changed_is_not_remembered(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_hashes, "SETTLED_SECONDS", 3600.0)

    sha256_of_source(large)

    assert not notes(tmp_path)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"of": []}'])
def test_a_damaged_note_is_not_believed(
    damage: str, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sha256_of_source(large)
    another_process(monkeypatch)
    [note] = notes(tmp_path)

    note.write_text(damage)

    assert sha256_of_source(large) == first


def test_small_files_leave_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "small", b"ab", 1_000_000_000)

    sha256_of_source(tmp_path / "small")

    assert not notes(tmp_path)


def test_a_cache_that_cannot_be_written_is_no_failure(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path / "file"))

    assert sha256_of_source(large) == files.hashlib.sha256(b"one two").hexdigest()
