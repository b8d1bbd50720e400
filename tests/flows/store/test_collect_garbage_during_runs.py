"""`pretrieve gc --delete` while runs begin, build, publish and end: nothing that they need is deleted."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.store.collect_garbage import delete_candidates
from flows.store.gc_survey import Policy, take_survey
from storage.artifact import Artifact, Manifest
from storage.store.run_notes import noted, read_notes
from storage.store.store import Store
from storage.tables import Qrels
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests import finished_runs
from tests.finished_runs import Made
from tests.flows.store.test_collect_garbage import artifacts, sweep
from tests.warm import ROOT, environment


@stage(version=1, table=Qrels)
def derived(out: Path, passages: Artifact[Any], *, settings: Made) -> None:
    """Something that is made of passages."""
    finished_runs.ingest_qrels.body(out, settings=settings)


def test_a_run_that_begins_between_listing_and_deleting_keeps_what_it_needs(store: Store) -> None:
    """The note is written, and the store looked at, after gc has decided what to delete."""
    artifact = finished_runs.split_corpus(settings=Made(queries=7))
    lone = finished_runs.split_corpus(settings=Made(queries=8))
    survey = take_survey(store, Policy(0, False))
    assert {candidate.reference for candidate in survey.candidates} == {artifact.reference, lone.reference}

    with noted(store, "reproduce", "one", [artifact.reference]):
        delete_candidates(survey, store)

        assert artifact.path.exists()
        assert not lone.path.exists()


def build_a_run(root: Path, enough: Path) -> None:
    """Build at least forty artifacts, and go on until the file `enough` says that collections have met the run."""
    store = Store(root)
    with noted(store, "reproduce", "one") as note:
        for number in itertools.count(5):
            if number >= 25 and enough.exists():
                break
            with session(Session(store, Execution(workers=1, threads=1, device="cpu"), note=note)):
                passages = finished_runs.split_corpus(settings=Made(queries=number))
                derived(passages, settings=Made(queries=number))
                json.loads((passages.path / "manifest.json").read_text())
        built = [f"{folder.parent.name}/{folder.name}" for folder, _ in store.manifests()]
        (root / "reports" / "one").mkdir(parents=True)
        stages = [dict(zip(("stage", "key"), reference.split("/"), strict=True)) for reference in built]
        (root / "reports" / "one" / "report.json").write_text(json.dumps({"stages": stages, "inputs": {}}))
        note.finish()


def test_a_run_completes_while_collections_delete_what_is_not_needed(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lone = finished_runs.ingest_queries(settings=Made(queries=7))
    enough = tmp_path / "enough"
    program = f"from {__name__} import *; build_a_run(Path({str(store.root)!r}), Path({str(enough)!r}))"
    with (tmp_path / "stderr").open("w") as stderr:
        run = subprocess.Popen([sys.executable, "-c", program], env=environment(tmp_path), cwd=ROOT, stderr=stderr)
    while not list((store.root / ".runs").glob("*.json")) and run.poll() is None:
        time.sleep(0.01)
    sweeps = 0
    while run.poll() is None:
        ended = sweep(capsys, store, "--unfinished")
        assert ended.code == 0, ended.err
        sweeps += 1
        if sweeps == 3:
            enough.touch()
    sweep(capsys, store, "--unfinished")

    assert run.returncode == 0, (tmp_path / "stderr").read_text()
    assert not lone.path.exists()
    report = json.loads((store.root / "reports" / "one" / "report.json").read_text())
    assert artifacts(store) == {f"{step['stage']}/{step['key']}" for step in report["stages"]}
    assert len(report["stages"]) >= 40
    assert read_notes(store.root) == []


def test_an_artifact_that_is_published_while_its_manifest_is_looked_up_is_not_damaged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = finished_runs.split_corpus(settings=Made(queries=7))
    unpublished = artifact.path.rename(tmp_path / "unpublished")
    read_manifest = Store.manifest

    def manifest(self: Store, stage: str, key: str) -> Manifest | None:
        result = read_manifest(self, stage, key)
        if unpublished.exists():
            unpublished.rename(artifact.path)
        return result

    monkeypatch.setattr(Store, "manifest", manifest)
    with noted(store, "reproduce", "one", [artifact.reference]):
        survey = take_survey(store, Policy(0, False))

    assert survey.refusals == []
    assert artifact.reference in survey.kept


def test_a_report_that_is_published_between_listing_and_deleting_keeps_what_it_needs(store: Store) -> None:
    finished_runs.run(store, "one")
    page = store.root / "reports" / "one" / "report.json"
    content = page.read_text()
    page.unlink()
    survey, before = take_survey(store, Policy(0, False)), artifacts(store)

    page.write_text(content)
    delete_candidates(survey, store)

    assert artifacts(store) == before


def test_what_was_rebuilt_since_it_was_listed_is_kept(store: Store) -> None:
    artifact = finished_runs.split_corpus(settings=Made(queries=7))
    survey = take_survey(store, Policy(0, False))

    (artifact.path / "manifest.json").unlink()
    with session(Session(store, Execution(device="cpu"))):
        finished_runs.split_corpus(settings=Made(queries=7))
    delete_candidates(survey, store)

    assert artifacts(store) == {artifact.reference}


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


def test_a_folder_that_another_process_moves_away_meanwhile_ends_nothing(store: Store) -> None:
    built = [finished_runs.split_corpus(settings=Made(queries=n)) for n in range(1, 4)]
    listed = store.manifests

    def moving() -> Any:
        for folder, manifest in listed():
            shutil.rmtree(built[0].path, ignore_errors=True)
            yield folder, manifest

    store.manifests = moving  # type: ignore[method-assign]
    survey = take_survey(store, Policy(0, False))

    assert {candidate.path for candidate in survey.candidates} == {artifact.path for artifact in built[1:]}
