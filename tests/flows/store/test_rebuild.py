"""`--rebuild`: a stage and what depends on it are built again, and an interrupted rebuild resumes."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from flows.store.rebuild import dependent_on, request_rebuild
from storage.artifact import Manifest
from storage.errors import UserError
from storage.store.rebuilds import FOLDER, read_requests, request
from storage.store.run_notes import noted
from storage.store.store import Store
from tasks.runtime.attempts import Attempt, Cost
from tasks.session import Session, session
from tasks.stage import run_job
from tests import warm
from tests.rebuilding import planned

MODULE = "tests.rebuilding"


def run(folder: Path, *options: str) -> str:
    """Run the chain to its end; what it prints."""
    done = warm.run(folder, str(folder), *options, module=MODULE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def manifests(folder: Path) -> dict[str, Manifest]:
    """By stage."""
    return {job.stage.name: _manifest(folder, reference) for reference, job in plan_of(folder).jobs.items()}


def _manifest(folder: Path, reference: str) -> Manifest:
    manifest = Store(folder / "store").manifest(*reference.split("/"))
    assert manifest
    return manifest


def plan_of(folder: Path):  # type: ignore[no-untyped-def]
    return planned(Store(folder / "store"))


def damage(folder: Path) -> list[str]:
    store = Store(folder / "store")
    return [str(path) for path, _ in store.manifests() if store.quarantine_if_damaged(path)]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A folder whose store has the complete chain."""
    run(tmp_path)
    assert calls(tmp_path) == ["start", "middle", "end"]
    return tmp_path


def test_a_stage_and_what_depends_on_it_are_rebuilt_under_their_keys(built: Path) -> None:
    before = manifests(built)

    said = run(built, "--rebuild", "middle")

    after = manifests(built)
    assert calls(built)[3:] == ["middle", "end"]
    assert "the rebuild of middle begins: 2 of 2 stages are to be replaced" in said
    assert said.count("rebuilt, equal to the artifact that it replaces") == 2
    assert re.search(r"^middle \w{8} … \[2/3\]$", said, re.MULTILINE)
    assert after["start"] == before["start"]
    for name in ("middle", "end"):
        assert (after[name].key, after[name].hash) == (before[name].key, before[name].hash)
        assert after[name].built != before[name].built
    assert not damage(built)
    assert not list((built / "store" / FOLDER).iterdir())
    assert not list((built / "store" / ".work").iterdir())
    assert not run(built).count("…")
    assert calls(built)[3:] == ["middle", "end"]


def test_builds_of_equal_cost_within_the_same_second_are_told_apart(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(built / "store")
    (reference, job), *_ = plan_of(built).jobs.items()
    monkeypatch.setattr(Attempt, "total", lambda self: Cost(0.1, 0.1))
    for _ in range(4):
        request(store.root, "chain --rebuild start", [reference])
        with session(Session(store)) as current:
            run_job(job, current)
        assert not [reference for rebuild in read_requests(store.root) for reference in rebuild.pending()]


def test_after_a_kill_the_earlier_artifact_is_there_and_the_same_command_resumes(built: Path) -> None:
    before = manifests(built)
    (built / "wait").touch()
    (built / "began").unlink()

    command = warm.start(
        str(built), "--rebuild", "start", cwd=built, env=warm.environment(built), stdout=built / "stdout",
        stderr=built / "stderr", module=MODULE,
    )  # fmt: skip
    while not (built / "began").exists():
        assert command.poll() is None, (built / "stderr").read_text()
        time.sleep(0.02)
    command.end()
    assert command.wait(60) == -signal.SIGKILL

    during = manifests(built)
    assert during["start"].built != before["start"].built
    assert (during["middle"], during["end"]) == (before["middle"], before["end"])
    assert not damage(built)
    [rebuild] = read_requests(built / "store")
    assert [reference.split("/")[0] for reference in rebuild.pending()] == ["middle", "end"]
    (built / "wait").unlink()

    said = run(built, "--rebuild", "start")

    assert "the rebuild of start resumes: 2 of 3 stages are to be replaced" in said
    assert calls(built)[3:] == ["start", "middle", "end"]  # start was not rebuilt twice
    assert manifests(built)["start"] == during["start"]
    assert not list((built / "store" / FOLDER).iterdir())
    assert not damage(built)


def test_a_rebuild_that_was_killed_after_its_last_artifact_is_complete(built: Path) -> None:
    store = Store(built / "store")
    request_rebuild(planned(store).jobs, "end", "chain", store)
    kept = next((built / "store" / FOLDER).iterdir())
    content = kept.read_text()
    run(built)
    kept.write_text(content)  # as if the run had been killed before it removed its request

    said = run(built, "--rebuild", "end")

    assert "the rebuild of end resumes: 0 of 1 stages are to be replaced" in said
    assert calls(built)[3:] == ["end"]
    assert "the rebuild of end begins: 1 of 1" in run(built, "--rebuild", "end")
    assert calls(built)[3:] == ["end", "end"]


def test_a_run_without_the_option_completes_an_interrupted_rebuild(built: Path) -> None:
    store = Store(built / "store")
    request_rebuild(planned(store).jobs, "end", "chain", store)

    run(built)

    assert calls(built)[3:] == ["end"]
    assert not list((built / "store" / FOLDER).iterdir())


def test_another_content_is_reported_with_what_was_built_from_the_earlier_one(built: Path) -> None:
    (built / "text").write_text("changed")
    store, plan = Store(built / "store"), plan_of(built)
    middle = next(reference for reference, job in plan.jobs.items() if job.stage.name == "middle")
    [job] = [job for job in plan.jobs.values() if job.stage.name == "end"]
    request(store.root, "only the middle", [middle])

    said = run(built)

    assert "rebuilt, DIFFERS from the artifact that it replaces in 1 of 1 files: part-00000.parquet" in said
    assert f"built from the earlier content and not rebuilt: end/{job.key[:8]}" in said


def test_a_run_that_uses_the_artifacts_is_named(built: Path) -> None:
    store = Store(built / "store")
    jobs = planned(store).jobs

    with (
        noted(store, "reproduce", "another run", list(jobs)),
        pytest.raises(UserError, match=r"reproduce another run on .* uses these artifacts"),
    ):
        request_rebuild(jobs, "middle", "chain", store)


def test_an_unknown_stage_is_refused(built: Path) -> None:
    store = Store(built / "store")

    with pytest.raises(UserError, match=r"'midle': .* did you mean middle\?"):
        dependent_on(planned(store).jobs, "midle")
