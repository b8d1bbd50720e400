"""`pretrieve gc` keeps what reports, versions and runs need, what is young, and what has come into use."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from flows.store.needs import keep
from storage.artifact import Artifact
from storage.errors import DamagedArtifact
from storage.store.run_notes import noted, read_notes
from storage.store.store import Store
from storage.tables import Qrels
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests import finished_runs
from tests.console import Ended, command, read_only, tree
from tests.finished_runs import Made

DAYS = 86400


def sweep(capsys: pytest.CaptureFixture[str], store: Store, *options: str) -> Ended:
    """What `gc --delete` says, without regard to age."""
    return command(capsys, "gc", "--delete", "--older-than", "0s", "--store", store.root, *options)


def artifacts(store: Store) -> set[str]:
    """All artifacts of a store."""
    return {f"{folder.parent.name}/{folder.name}" for folder, manifest in store.manifests() if manifest}


def aged(store: Store, days: float) -> None:
    """Have everything be as old as that."""
    then = time.time() - days * DAYS
    for folder in store.root.glob("[!.]*/*"):
        os.utime(folder, (then, then))


@stage(version=1, table=Qrels)
def derived(out: Path, passages: Artifact[Any], *, settings: Made) -> None:
    """Something that is made of passages."""
    finished_runs.ingest_qrels.body(out, settings=settings)


def test_what_a_report_needs_is_kept_and_the_rest_is_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    finished_runs.run(store, "one")
    needed = artifacts(store)
    lone = finished_runs.split_corpus(settings=Made(queries=7))

    listed = command(capsys, "gc", "--older-than", "0s", "--store", store.root)
    assert "1 folders" in listed.out
    ended = sweep(capsys, store)

    assert ended.code == 0, ended.err
    assert "deleted 1 folders" in ended.out
    assert artifacts(store) == needed
    assert not lone.path.exists()
    assert not list((store.root / ".work").iterdir())


def test_what_is_young_is_kept_with_all_that_it_was_made_of(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    old = finished_runs.ingest_queries(settings=Made(queries=7))
    aged(store, 3)
    young = derived(passages, settings=Made(queries=7))

    assert command(capsys, "gc", "--delete", "--older-than", "4d", "--store", store.root).code == 0
    assert old.path.exists()
    assert command(capsys, "gc", "--delete", "--store", store.root).code == 0

    assert artifacts(store) == {passages.reference, young.reference}


def test_what_another_folder_needs_is_kept_until_it_is_given_up(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    needing = derived(passages, settings=Made(queries=7))
    keep(store, Path("adapt/mine"), [needing.reference])

    assert sweep(capsys, store, "--unfinished").code == 0
    assert artifacts(store) == {passages.reference, needing.reference}
    kept = store.root / "reports" / "adapt" / "mine" / "kept.json"
    kept.write_text("{")
    ended = sweep(capsys, store)
    assert [ended.code, "kept.json: expected a list of references" in ended.err] == [2, True]
    kept.unlink()
    assert sweep(capsys, store).code == 0
    assert artifacts(store) == set()


@pytest.mark.parametrize("age", ["", "1", "-1d", "1w", "1.5h", "12h ", "¹d", "9999999999d"])
def test_an_age_that_is_none_is_refused(age: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    finished_runs.split_corpus(settings=Made(queries=7))
    ended = command(capsys, "gc", "--delete", "--older-than", age, "--store", store.root)

    assert ended.code == 2
    assert "expected a number with s, m, h or d" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert len(artifacts(store)) == 1


def test_an_unfinished_run_keeps_what_it_needs_until_its_work_is_given_up(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with noted(store, "reproduce", "one") as note, session(Session(store, Execution(device="cpu"), note=note)):
        passages = finished_runs.split_corpus(settings=Made(queries=7))
        derived(passages, settings=Made(queries=7))
    begun = artifacts(store)
    work = store.begin("train", "0123456789abcdef01234567")
    (work / "checkpoint").write_text("half")
    with noted(store, "reproduce", "two", ["train/0123456789abcdef01234567"]):
        pass

    listed = sweep(capsys, store)
    assert ": unfinished: reproduce one" in listed.out
    assert "deleted 0 folders" in listed.out
    assert artifacts(store) == begun
    assert (work / "checkpoint").exists()
    sweep(capsys, store, "--unfinished")

    assert artifacts(store) == set()
    assert not work.exists()
    assert read_notes(store.root) == []


def test_a_run_that_is_running_keeps_what_it_needs_whatever_is_given_up(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with noted(store, "reproduce", "one") as note, session(Session(store, Execution(device="cpu"), note=note)):
        finished_runs.split_corpus(settings=Made(queries=7))
        sweep(capsys, store, "--unfinished")

        assert len(artifacts(store)) == 1
        assert [note.state for note in read_notes(store.root)] == ["running"]
        note.finish()
    sweep(capsys, store)
    assert artifacts(store) == set()


def test_a_run_of_another_host_may_be_running(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with noted(store, "reproduce", "one") as note, session(Session(store, Execution(device="cpu"), note=note)):
        finished_runs.split_corpus(settings=Made(queries=7))
    [path] = (store.root / ".runs").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "another", "boot": "another"}))

    ended = sweep(capsys, store, "--unfinished")

    assert ": on another host: reproduce one" in ended.out
    assert len(artifacts(store)) == 1


def test_a_later_attempt_replaces_the_notes_of_those_before(store: Store) -> None:
    for references in (["a/1"], ["a/1", "b/1"], ["c/1"]):
        with noted(store, "reproduce", "one", references):
            pass

    assert sorted(sorted(note.references) for note in read_notes(store.root)) == [["a/1", "b/1"], ["c/1"]]


@pytest.mark.parametrize("content", ["{", "[]", '{"stages": 1}', '{"stages": [{"stage": "..", "key": "x"}]}', "\udcff"])
def test_a_report_that_cannot_be_read_forbids_deleting(
    content: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.run(store, "one")
    page = store.root / "reports" / "one" / "report.json"
    page.write_bytes(content.encode(errors="surrogateescape"))
    before = tree(store.root)

    listed = command(capsys, "gc", "--older-than", "0s", "--store", store.root)
    ended = sweep(capsys, store)

    assert listed.code == 0
    assert str(page) in listed.err
    assert ended.code == 2
    assert f"nothing was deleted: {page}: expected the stages of a run" in ended.err
    assert {name: content for name, content in tree(store.root).items() if not name.startswith(".locks")} == {
        name: content for name, content in before.items() if not name.startswith(".locks")
    }


def test_what_a_damaged_artifact_was_made_of_is_not_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    needed = derived(passages, settings=Made(queries=7))
    with noted(store, "reproduce", "one", [needed.reference]):
        pass
    (needed.path / "manifest.json").write_text("{")

    ended = sweep(capsys, store)

    assert ended.code == 2
    assert f"{needed.path}: this artifact is needed and damaged" in ended.err
    assert passages.path.exists()


def test_what_cannot_be_deleted_is_not_counted_as_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished_runs.split_corpus(settings=Made(queries=7)).path
    remains = store.root / ".work" / "deleted-split_corpus-1" / "closed"
    remains.mkdir(parents=True)
    (remains / "file").write_bytes(bytes(2000))

    with read_only(remains):
        ended = sweep(capsys, store)

    assert ended.code == 2
    assert "deleted 1 folders" in ended.out
    assert not folder.exists()
    [line] = ended.lines
    assert line.startswith("pretrieve: cannot be deleted: 2.0 KiB of .work/deleted-split_corpus-1: ")
    assert "Read-only file system" in line


def test_a_run_whose_input_was_deleted_names_it_and_says_what_to_do(store: Store) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    shutil.rmtree(passages.path)

    with pytest.raises(DamagedArtifact, match=f"{passages.path}.*missing.*run its recipe again"):
        derived(passages, settings=Made(queries=7))
