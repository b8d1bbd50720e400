"""What a user can mend is one line on standard error and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PRETRIEVE_"))}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=place, capture_output=True, text=True, timeout=300,
        env=kept | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": str(place)},
    )  # fmt: skip


def test_help_answers_in_half_a_second(tmp_path: Path) -> None:
    seconds = []
    for _ in range(3):
        before = os.times()
        started = time.monotonic()
        done = run(tmp_path, "--help")
        after = os.times()
        # CPU seconds of the command: what it would take on a machine that does nothing else.
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(min(cpu, time.monotonic() - started))

    assert done.returncode == 0
    for name in ("reproduce", "plan", "show", "verify", "gc", "export", "doctor"):
        assert name in done.stdout
    assert min(seconds) < 0.5


def collection(folder: Path, **changed: str | None) -> Path:
    """A small collection in BEIR's layout; a file's text may be changed, or the file left out by None."""
    files: dict[str, str | None] = {
        "corpus.jsonl": "".join(
            json.dumps({"_id": f"d{n}", "title": "", "text": f"Text number {n}."}) + "\n" for n in range(9)
        ),
        "queries.jsonl": "".join(json.dumps({"_id": f"q{n}", "text": f"number {n}"}) + "\n" for n in range(9)),
        "qrels/train.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(6)),
        "qrels/dev.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(6, 9)),
    } | {name.replace("__", "/").replace("_", "."): text for name, text in changed.items()}
    for name, text in files.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


ONE = '{"_id": "d0", "title": "", "text": "Text."}\n'
HEAD = "query-id\tcorpus-id\tscore\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "absent", "said"),
    [
        ({"corpus_jsonl": ONE + '{"_id": "d1", "text": \n'}, "ingest_corpus", ["corpus.jsonl", "line 2", "JSON"]),
        ({"corpus_jsonl": ONE + ONE}, "ingest_corpus", ["corpus.jsonl", "d0"]),
        (
            {"corpus_jsonl": '{"_id": "d0", "title": "", "text": " "}\n'},
            "ingest_corpus",
            ["corpus.jsonl", "line 1", "empty"],
        ),
        ({"corpus_jsonl": None}, "ingest_corpus", ["corpus.jsonl"]),
        ({"qrels__dev_tsv": HEAD + "q1\td99\t1\n"}, "index", ["qrels/dev.tsv", "d99"]),
        ({"qrels__dev_tsv": HEAD}, "index", ["qrels/dev.tsv"]),
    ],
    ids=["malformed line", "duplicate id", "empty document", "missing file", "qrels to nothing", "empty split"],
)
def test_bad_input_is_named_in_one_line(tmp_path: Path, changed: dict[str, str], absent: str, said: list[str]) -> None:
    folder = collection(tmp_path / "data", **changed)

    done = run(
        tmp_path,
        "reproduce",
        "small/beir",
        "--set",
        f"dataset.path={folder}",
        "--until",
        "index",
    )

    assert done.returncode == 2, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("pretrieve: ")]
    assert len(complaints) == 1
    assert all(word in complaints[0] for word in said), complaints[0]
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "artifacts").glob(f"{absent}/*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "quikstart"], "did you mean quickstart"),
        (["reproduce", "quickstart", "--set", "pretrain.step=1"], "did you mean steps"),
        (["reproduce", "small/beir", "--set", "dataset.path=nowhere"], "nowhere"),
        (["reproduce", "small/beir"], "dataset.path"),
        (["show", "abc"], "there is no store here"),
        (["verify", "--store", "missing"], "there is no store here"),
        (["reproduce"], "RECIPE"),
        (["sing"], "sing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_is_named_in_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = run(tmp_path, *arguments)

    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert [each.name for each in tmp_path.iterdir() if each.name != ".cache"] == []  # which is the home's here


def test_an_unknown_stage_to_stop_after_names_the_nearest(tmp_path: Path) -> None:
    folder = collection(tmp_path / "data")

    done = run(tmp_path, "reproduce", "small/beir", "--set", f"dataset.path={folder}", "--until", "pretrian")

    assert done.returncode == 2
    assert "did you mean pretrain" in done.stderr


def test_the_keys_of_a_collection_depend_on_its_content_alone(tmp_path: Path) -> None:
    def plan(folder: Path) -> list[str]:
        done = run(tmp_path, "plan", "small/beir", "--set", f"dataset.path={folder}")
        assert done.returncode == 0, done.stderr
        return [line.split("│")[3].strip() for line in done.stdout.splitlines() if "to build" in line and "│" in line]

    here = plan(collection(tmp_path / "here"))
    there = plan(collection(tmp_path / "there"))
    corpus = tmp_path / "there" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("number 3", "number three"))
    changed = plan(tmp_path / "there")

    assert here == there
    assert len(here) == len(changed) > 10
    assert set(here).isdisjoint(changed) is False  # the backbone does not depend on the collection
    assert here[1] != changed[1]


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    folder = collection(tmp_path / "data", corpus_jsonl=None)
    whole = gzip.compress(("".join(ONE.replace("d0", f"d{n}") for n in range(1000))).encode())
    (folder / "corpus.jsonl.gz").write_bytes(whole[: len(whole) // 2])

    done = run(tmp_path, "reproduce", "small/beir", "--set", f"dataset.path={folder}", "--until", "ingest_corpus")

    assert done.returncode == 2
    assert "corpus.jsonl.gz" in done.stderr


def test_doctor_says_what_works(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor")

    assert done.returncode == 0, done.stdout
    for what in ("Python", "Java", "GPU", "disk", "Prefect"):
        assert what in done.stdout
