"""`pretrieve gc` keeps what reports, versions and runs need, what is young, and what has come into use."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from flows import collect_garbage as gc
from storage.artifact import Artifact
from storage.store.run_notes import noted, read_notes
from storage.store.store import DamagedArtifact, Store
from storage.tables import Qrels
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests import finished_runs
from tests.console import Ended, command, tree
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
        assert [each.state for each in read_notes(store.root)] == ["running"]
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


def test_a_run_that_begins_between_listing_and_deleting_keeps_what_it_needs(store: Store) -> None:
    """The note is written, and the store looked at, after gc has decided what to delete."""
    made = finished_runs.split_corpus(settings=Made(queries=7))
    lone = finished_runs.split_corpus(settings=Made(queries=8))
    survey = gc.look(store, 0, False)
    assert {each.reference for each in survey.candidates} == {made.reference, lone.reference}

    with noted(store, "reproduce", "one", [made.reference]):
        gc._delete_all(survey, store, 0, False)

        assert made.path.exists()
        assert not lone.path.exists()


def build_a_run(root: Path, enough: Event) -> None:
    """Build at least forty artifacts, and go on until `enough` collections have met the run."""
    store = Store(root)
    with noted(store, "reproduce", "one") as note:
        for number in itertools.count(5):
            if number >= 25 and enough.is_set():
                break
            with session(Session(store, Execution(workers=1, threads=1, device="cpu"), note=note)):
                passages = finished_runs.split_corpus(settings=Made(queries=number))
                derived(passages, settings=Made(queries=number))
                json.loads((passages.path / "manifest.json").read_text())
        built = [f"{folder.parent.name}/{folder.name}" for folder, _ in store.manifests()]
        (root / "reports" / "one").mkdir(parents=True)
        stages = [dict(zip(("stage", "key"), each.split("/"), strict=True)) for each in built]
        (root / "reports" / "one" / "report.json").write_text(json.dumps({"stages": stages, "inputs": {}}))
        note.finish()


def test_a_run_completes_while_collections_delete_what_is_not_needed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = finished_runs.ingest_queries(settings=Made(queries=7))
    context = multiprocessing.get_context("fork")
    enough = context.Event()
    run = context.Process(target=build_a_run, args=(store.root, enough))
    run.start()
    while not list((store.root / ".runs").glob("*.json")) and run.is_alive():
        time.sleep(0.01)
    sweeps = 0
    while run.is_alive():
        ended = sweep(capsys, store, "--unfinished")
        assert ended.code == 0, ended.err
        sweeps += 1
        if sweeps == 3:
            enough.set()
    run.join()
    sweep(capsys, store, "--unfinished")

    assert run.exitcode == 0
    assert not lone.path.exists()
    report = json.loads((store.root / "reports" / "one" / "report.json").read_text())
    assert artifacts(store) == {f"{step['stage']}/{step['key']}" for step in report["stages"]}
    assert len(report["stages"]) >= 40
    assert read_notes(store.root) == []


def test_a_report_that_is_published_between_listing_and_deleting_keeps_what_it_needs(store: Store) -> None:
    finished_runs.run(store, "one")
    page = store.root / "reports" / "one" / "report.json"
    content = page.read_text()
    page.unlink()
    survey, before = gc.look(store, 0, False), artifacts(store)

    page.write_text(content)
    gc._delete_all(survey, store, 0, False)

    assert artifacts(store) == before


def test_what_was_rebuilt_since_it_was_listed_is_kept(store: Store) -> None:
    made = finished_runs.split_corpus(settings=Made(queries=7))
    survey = gc.look(store, 0, False)

    (made.path / "manifest.json").unlink()
    with session(Session(store, Execution(device="cpu"))):
        finished_runs.split_corpus(settings=Made(queries=7))
    gc._delete_all(survey, store, 0, False)

    assert artifacts(store) == {made.reference}


def test_what_is_being_built_stays_and_without_a_note_nothing_is_deleted(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.split_corpus(settings=Made(queries=7))
    key = "0123456789abcdef01234567"
    with store.lock("train", key, lambda: None):
        work = store.begin("train", key)
        ended = sweep(capsys, store)

        assert ended.code == 2
        assert "nothing was deleted" in ended.err
        assert len(artifacts(store)) == 1
        with noted(store, "run_stage", "train", [f"train/{key}"]):
            assert sweep(capsys, store).code == 0
        assert work.exists()
    assert artifacts(store) == set()


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


def test_a_folder_that_another_process_moves_away_meanwhile_ends_nothing(store: Store) -> None:
    made = [finished_runs.split_corpus(settings=Made(queries=n)) for n in range(1, 4)]
    listed = store.manifests

    def moving() -> Any:
        for folder, manifest in listed():
            shutil.rmtree(made[0].path, ignore_errors=True)
            yield folder, manifest

    store.manifests = moving  # type: ignore[method-assign]
    survey = gc.look(store, 0, False)

    assert {candidate.path for candidate in survey.candidates} == {each.path for each in made[1:]}


def test_what_a_damaged_artifact_was_made_of_is_not_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    needed = derived(passages, settings=Made(queries=7))
    with noted(store, "reproduce", "one", [needed.reference]):
        pass
    (needed.path / "manifest.json").write_text("{")

    ended = sweep(capsys, store)

    assert ended.code == 2
    assert f"{needed.path}: it is needed, and damaged" in ended.err
    assert passages.path.exists()


def test_a_run_whose_input_was_deleted_names_it_and_says_what_to_do(store: Store) -> None:
    passages = finished_runs.split_corpus(settings=Made(queries=7))
    shutil.rmtree(passages.path)

    with pytest.raises(DamagedArtifact, match=f"{passages.path}.*missing.*run its recipe again"):
        derived(passages, settings=Made(queries=7))
