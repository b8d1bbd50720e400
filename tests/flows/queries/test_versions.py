"""Versions of corpora: each has its state, and a damaged line of their file is no trouble for the others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.queries.versions import VERSIONS, find_version, folder_of, note_version, versions_of
from flows.store.needs import report_needs
from storage.artifact import Artifact
from storage.errors import UserError
from storage.store.store import Store
from tests import finished_runs
from tests.console import command
from tests.finished_runs import Made

NAME = "corpus"


def noted(number: int, store: Store) -> Artifact[Any]:
    """The queries of a new version; any artifacts will do."""
    queries = finished_runs.ingest_queries(settings=Made(queries=number))
    passages = finished_runs.split_corpus(settings=Made(queries=number))
    note_version(NAME, queries, passages, passages, store)
    return queries


@pytest.fixture
def versions(store: Store) -> list[Artifact[Any]]:
    """Three versions."""
    return [noted(number, store) for number in (1, 2, 3)]


def test_the_newest_version_takes_statistics_of_other_settings(versions: list[Artifact[Any]], store: Store) -> None:
    before = versions_of(NAME, store)
    recomputed = finished_runs.ingest_qrels(settings=Made(queries=9))

    version, previous = note_version(NAME, versions[2], before[-1].passages, recomputed, store)

    assert previous == before[1]
    assert version.quality == recomputed
    assert versions_of(NAME, store) == [*before[:2], version]


def file_of(store: Store) -> Path:
    return folder_of(NAME, store) / VERSIONS


def states(out: str) -> list[list[str]]:
    """The versions that `queries list` shows, with their states and rows."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if NAME + "@" in line]
    return [[row[0], row[2], row[3]] for row in rows]


def test_the_list_shows_what_is_kept_damaged_and_deleted(
    versions: list[Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    shutil.rmtree(versions[0].path)
    (versions[1].path / "manifest.json").write_text("{")

    listed = command(capsys, "queries", "list", "--store", store.root)

    assert listed.code == 0, listed.err
    assert states(listed.out) == [["corpus@1", "deleted", ""], ["corpus@2", "damaged", ""], ["corpus@3", "kept", "3"]]


@pytest.mark.parametrize(
    "line",
    [
        b'{"at"', b"\xff\xfe", b"[]", b"1", b"[" * 9999, b"",
        b'{"at": 1, "queries": "a/b", "passages": "a/b", "quality": "a/b"}',
        b'{"at": "x", "queries": "../../x", "passages": "a/b", "quality": "a/b"}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_and_quarantined_and_the_others_keep_their_numbers(
    line: bytes, versions: list[Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "160")
    lines = file_of(store).read_bytes().splitlines()
    file_of(store).write_bytes(b"\n".join([lines[0], line, lines[2], b""]))
    before = file_of(store).read_bytes()

    listed = command(capsys, "queries", "list", "--store", store.root)
    assert [row[:2] for row in states(listed.out)] == [["corpus@1", "kept"], ["corpus@3", "kept"]]
    assert listed.code == 0
    assert f"{file_of(store)}: line 2: damaged" in listed.err
    assert find_version(f"{NAME}@3", store).queries == versions[2]
    with pytest.raises(UserError, match="has versions 1, 3"):
        find_version(f"{NAME}@2", store)
    refused = command(capsys, "gc", "--delete", "--older-than", "0s", "--store", store.root)
    assert refused.code == 2
    assert versions[1].path.exists()
    verified = command(capsys, "verify", "--store", store.root)
    assert verified.code == 1
    assert f"{file_of(store)}: line 2: damaged" in verified.err
    assert file_of(store).read_bytes() == before

    quarantined = command(capsys, "verify", "--aside", "--store", store.root)
    assert quarantined.code == 1
    [aside] = folder_of(NAME, store).glob(f"{VERSIONS}.damaged-*")
    assert str(aside) in quarantined.err
    assert aside.read_bytes() == before
    assert command(capsys, "verify", "--store", store.root).code == 0
    assert file_of(store).read_bytes().splitlines() == [lines[0], b"null", lines[2]]
    assert "damaged lines, whose versions are unknown" in report_needs(store).problems[0]


def test_the_next_version_is_noted_after_a_damaged_line_was_quarantined(
    versions: list[Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of(store).write_bytes(file_of(store).read_bytes()[:-9])

    fourth = noted(4, store)

    assert [version.number for version in versions_of(NAME, store)] == [1, 2, 4]
    assert find_version(NAME, store).queries == fourth
    assert "line 3: damaged" in capsys.readouterr().err
    assert len(list(folder_of(NAME, store).glob(f"{VERSIONS}.damaged-*"))) == 1
