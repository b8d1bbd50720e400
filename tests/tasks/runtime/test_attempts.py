"""The cost of a build is that of all attempts, also of killed ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.artifact import Manifest
from storage.rows import write_rows
from storage.store.locks import LeaseLost
from storage.store.store import Store
from storage.tables import Queries
from tasks.runtime import attempts
from tasks.runtime.attempts import ATTEMPTS, Attempt, Cost
from tasks.session import Execution, Session, session
from tasks.stage import stage
from tests.warm import ROOT

KILLED = """
import json, os, signal, sys, time
from pathlib import Path
from tasks.runtime import attempts
attempts.SECONDS_BETWEEN_NOTES = 0.2
CPU = time.process_time()
with attempts.Attempt(Path(sys.argv[1])):
    while time.process_time() < CPU + 0.5:
        pass
    said = lambda: [json.loads(path.read_text()) for path in (Path(sys.argv[1]) / attempts.ATTEMPTS).glob("*.json")]
    while not any(note["seconds"] > 0.7 and note["cpu_seconds"] > 0.3 for note in said()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_costs_are_added_by_part() -> None:
    total = Cost(1.0, 2.0, {"GPUs": 3.0}) + Cost(10.0, 20.0, {"GPUs": 30.0, "memory": 40.0})

    assert total == Cost(11.0, 22.0, {"GPUs": 33.0, "memory": 40.0})


def test_a_killed_attempt_counts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)

    with Attempt(tmp_path) as attempt:
        time.sleep(0.1)

    assert attempt.number == 2
    assert 0.7 < attempt.total().seconds < 60  # at most a note's interval of the killed one is missing
    assert 0.3 < attempt.total().cpu_seconds < 60


def test_a_damaged_note_is_an_attempt_without_cost(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS).mkdir(parents=True)
    (tmp_path / ATTEMPTS / "1.json").write_text('{"seconds": 1')
    (tmp_path / ATTEMPTS / "2.json").write_text(json.dumps(vars(Cost(100.0, 7.0, {"GPUs": 5.0}))))

    attempt = Attempt(tmp_path)

    assert attempt.number == 3
    assert attempt.total().seconds == pytest.approx(100.0, abs=5.0)
    assert attempt.total().energy_joules["GPUs"] >= 5.0


def test_a_note_does_not_bring_back_a_work_folder_that_another_process_has_published(tmp_path: Path) -> None:
    work = tmp_path / "ingest_queries-0123"
    work.mkdir()

    def lose_the_lease() -> None:
        with Attempt(work):
            shutil.rmtree(work)
            raise LeaseLost

    with pytest.raises(LeaseLost):
        lose_the_lease()

    assert not work.exists()


@stage(version=1, table=Queries)
def fail_once(out: Path) -> None:
    """Fail the first time."""
    time.sleep(0.5)
    if not (out / "part-00000.parquet").exists():
        write_rows(out, Queries, [{"query_id": "0", "text": ""}])
        raise RuntimeError("cut off")


def test_a_manifest_has_the_cost_of_all_attempts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    execution = Execution(workers=1, threads=1, device="cpu")
    with session(Session(store, execution)), pytest.raises(RuntimeError, match="cut off"):
        fail_once()

    lines: list[str] = []
    with session(Session(store, execution, print_line=lines.append)):
        artifact = fail_once()

    manifest = Manifest.from_json((artifact.path / "manifest.json").read_text())
    assert manifest.built["attempts"] == 2
    assert manifest.built["seconds"] >= 1.0
    assert not (artifact.path / "scratch").exists()
    assert lines[-1].endswith(" s in 2 attempts, 1 rows")


def test_a_note_that_cannot_be_written_does_not_end_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS_BETWEEN_NOTES", 0.05)
    (tmp_path / "scratch").write_text("a file where a folder is needed")

    with Attempt(tmp_path) as attempt:
        time.sleep(0.3)

    assert attempt.number == 1
