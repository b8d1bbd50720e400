"""Artifacts are replaced under their keys: the earlier one stays until the new one takes its name in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.files import exchange
from storage.store import store as store_module
from storage.store.rebuilds import FOLDER, find_request, is_pending, read_requests, remove_finished, request
from storage.store.store import Store
from tests.storage.published import described, publish


@pytest.fixture
def store(tmp_path: Path) -> Store:
    result = Store(tmp_path)
    result.mark()
    return result


def published(store: Store, text: str) -> Artifact[object]:
    work = store.work("made", "new")
    work.mkdir(parents=True)
    (work / "file").write_text(text)
    return publish(store)


def replace(store: Store, artifact: Artifact[object], text: str) -> None:
    work = store.begin(artifact.stage, artifact.key)
    (work / "file").write_text(text)
    store.publish(artifact.stage, artifact.key, described)


def test_an_artifact_counts_as_missing_for_runs_only_until_it_is_replaced(store: Store) -> None:
    artifact = published(store, "earlier")

    request(store.root, "a title", [artifact.reference])

    assert store.up_to_date(artifact.stage, artifact.key) is None
    assert store.manifest(artifact.stage, artifact.key) is not None
    assert store.check(artifact) == artifact.path
    replace(store, artifact, "new")
    assert store.up_to_date(artifact.stage, artifact.key) is not None
    assert (artifact.path / "file").read_text() == "new"
    assert not list((store.root / ".work").iterdir())
    remove_finished(store.root)
    assert not list((store.root / FOLDER).iterdir())


def test_without_a_request_an_intact_artifact_stays(store: Store) -> None:
    artifact = published(store, "earlier")

    replace(store, artifact, "new")

    assert (artifact.path / "file").read_text() == "earlier"


def test_a_request_is_found_by_its_artifacts_until_it_is_removed(store: Store) -> None:
    artifact, absent = published(store, "earlier"), "made/0123456789abcdef01234567"
    references = [artifact.reference, absent]
    first = request(store.root, "a title", references)

    assert first.pending() == [artifact.reference]
    remove_finished(store.root)  # it is not finished
    assert find_request(store.root, references) == first
    assert find_request(store.root, [artifact.reference]) is None
    replace(store, artifact, "new")
    assert first.pending() == []
    assert find_request(store.root, references) == first
    remove_finished(store.root)
    assert find_request(store.root, references) is None


def test_a_replaced_artifact_can_be_requested_again(store: Store) -> None:
    artifact = published(store, "earlier")
    request(store.root, "a title", [artifact.reference])
    replace(store, artifact, "second")

    again = request(store.root, "a title", [artifact.reference])

    assert again.pending() == [artifact.reference]


def test_without_exchange_the_earlier_artifact_is_moved_away_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "exchange", lambda first, second: False)
    artifact = published(store, "earlier")
    request(store.root, "a title", [artifact.reference])

    replace(store, artifact, "new")

    assert (artifact.path / "file").read_text() == "new"
    [moved] = (store.root / ".damaged").iterdir()
    assert (moved / "file").read_text() == "earlier"


def test_after_a_kill_a_replaced_artifact_never_returns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = published(store, "earlier")
    request(store.root, "a title", [artifact.reference])
    with monkeypatch.context() as killed:
        killed.setattr(store_module, "_discard", _kill)
        with pytest.raises(KeyboardInterrupt):
            replace(store, artifact, "new")
    assert (artifact.path / "file").read_text() == "new"
    assert (store.work(artifact.stage, artifact.key) / "file").read_text() == "earlier"

    work = store.begin(artifact.stage, artifact.key)

    assert not list(work.iterdir())
    assert list(work.parent.iterdir()) == [work]


def _kill(*_: Path) -> None:
    raise KeyboardInterrupt


def test_a_build_that_was_killed_just_before_its_rename_resumes(store: Store) -> None:
    artifact = published(store, "built")
    work = store.work(artifact.stage, artifact.key)
    artifact.path.rename(work)

    assert (store.begin(artifact.stage, artifact.key) / "file").read_text() == "built"


def test_a_request_that_another_process_removes_meanwhile_is_none(store: Store) -> None:
    artifact = published(store, "earlier")
    first = request(store.root, "a title", [artifact.reference])
    other = request(store.root, "a title", [artifact.reference, "made/0123456789abcdef01234567"])
    requests = read_requests(store.root)
    next(requests)
    for rebuild in (first, other):
        rebuild.path.unlink()

    assert not list(requests)


def test_folders_exchange_their_names(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    assert exchange(tmp_path / "a", tmp_path / "b")

    assert [(tmp_path / name / "file").read_text() for name in "ab"] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("content", ["", "[]", '{"title": 1}', '{"title": "x", "manifests": []}'])
def test_a_file_that_is_no_request_is_named(store: Store, content: str) -> None:
    (store.root / FOLDER).mkdir()
    (store.root / FOLDER / "x.json").write_text(content)

    with pytest.raises(UserError, match=r"x\.json: expected a request"):
        is_pending(store.root, "made", "key")
