"""What a user can mend is one line on standard error and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.build import build
from flows.plan.plan import needed_for, planned
from flows.recipe.load import load_recipe
from storage.errors import UserError
from storage.store import sources
from storage.store.locks import LeaseLost
from storage.store.store import Store
from tasks.pretraining.initialise import initialise
from tasks.session import Session, session
from tests.in_process import ended_by
from tests.services.servers import Service
from tests.warm import environment, run

TYPER_ALONE = """
import typer

app = typer.Typer(rich_markup_mode="rich")


@app.command()
def first() -> None:
    "Do this."


@app.command()
def second() -> None:
    "Do that."


app()
"""


def test_help_answers_in_half_a_second(tmp_path: Path) -> None:
    """On a busy or slow machine everything takes longer: there, the help of two empty commands is the measure."""
    ours, alone = [], []
    for _ in range(3):
        seconds, shown = cpu_of("-m", "flows.cli", "--help", folder=tmp_path)
        ours.append(seconds)
        alone.append(cpu_of("-c", TYPER_ALONE, "--help", folder=tmp_path)[0])

    for name in ("reproduce", "plan", "show", "verify", "gc", "export", "doctor"):
        assert name in shown
    assert min(ours) < max(0.5, 1.5 * min(alone)), (ours, alone)


def cpu_of(*arguments: str, folder: Path) -> tuple[float, str]:
    """CPU seconds of Python with these arguments, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(folder), check=True, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


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


BAD = {
    "malformed line": (
        {"corpus_jsonl": ONE + '{"_id": "d1", "text": \n'}, "ingest_corpus", ["corpus.jsonl", "line 2", "JSON"]
    ),
    "duplicate id": ({"corpus_jsonl": ONE + ONE}, "ingest_corpus", ["corpus.jsonl", "d0"]),
    "empty documents": (
        {"corpus_jsonl": '{"_id": "d0", "title": "", "text": " "}\n'}, "ingest_corpus",
        ["the corpus has no document with a title or a text"],
    ),
    "missing file": ({"corpus_jsonl": None}, "ingest_corpus", ["corpus.jsonl"]),
    "truncated gzip": ({"corpus_jsonl": None}, "ingest_corpus", ["corpus.jsonl.gz"]),
    "qrels to nothing": ({"qrels__dev_tsv": HEAD + "q1\td99\t1\n"}, "index", ["qrels/dev.tsv", "d99"]),
    "empty split": ({"qrels__dev_tsv": HEAD}, "index", ["qrels/dev.tsv"]),
}  # fmt: skip


def bad_collection(folder: Path, what: str) -> Path:
    """A collection with one of the faults."""
    built = collection(folder, **BAD[what][0])
    if what == "truncated gzip":
        whole = gzip.compress(("".join(ONE.replace("d0", f"d{n}") for n in range(1000))).encode())
        (built / "corpus.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    return built


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that has what depends on no collection."""
    folder = tmp_path_factory.mktemp("begun")
    recipe, _ = load_recipe("small/beir", ["dataset.path=nowhere"])
    with session(Session(Store(folder), recipe.execution)):
        initialise(sources.weights(recipe.backbone.weights), settings=recipe.backbone)
    return folder


def build_metrics(collection: Path, store: Store) -> None:
    """What `pretrieve reproduce small/beir --until evaluate` does, without Prefect."""
    recipe, path = load_recipe("small/beir", [f"dataset.path={collection}"])
    jobs = needed_for(planned(recipe, path.stem, store), "evaluate")
    build(jobs, path.stem, Session(store, recipe.execution))


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(tmp_path: Path, begun: Path, what: str) -> None:
    _, absent, message = BAD[what]
    folder, store = bad_collection(tmp_path / "data", what), Store(tmp_path / "store")
    shutil.copytree(begun, store.root, copy_function=os.link)

    with pytest.raises(UserError) as complaint:
        build_metrics(folder, store)

    assert all(word in str(complaint.value) for word in message), complaint
    assert not list(store.root.glob(f"{absent}/*"))


@pytest.mark.slow
def test_bad_input_is_named_in_one_line(prefect_server: Service, tmp_path: Path) -> None:
    folder = bad_collection(tmp_path / "data", "qrels to nothing")

    done = run(
        tmp_path, "reproduce", "small/beir", "--set", f"dataset.path={folder}", "--until", "evaluate",
        PREFECT_API_URL=prefect_server.url,
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("pretrieve: ")]
    assert len(complaints) == 1
    assert all(word in complaints[0] for word in ("qrels/dev.tsv", "d99")), complaints[0]
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "artifacts").glob("ingest_corpus/*"))
    assert not list((tmp_path / "artifacts").glob("index/*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "quikstart"], "did you mean quickstart"),
        (["reproduce", "quickstart", "--set", "pretrain.step=1"], "did you mean steps"),
        (["reproduce", "small/beir", "--set", "dataset.path=nowhere"], "nowhere"),
        (["reproduce", "small/beir"], "dataset.path"),
        (["show", "abc"], "there is no store here"),
        (["verify", "--store", "missing"], "there is no store here"),
        (["queries", "export", "x", "y", "--format", "csv"], "Invalid value for '--format': 'csv' is not one of"),
        (["rehearse", "sim_cse", "--passages", "3999"], "greater than or equal to 4000; found '3999'"),
        (["adapt", "x", "--hours", "abc"], "unable to parse string as a number; found 'abc'"),
        (["reproduce"], "RECIPE"),
        (["sing"], "sing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_is_named_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(tmp_path, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != ".cache"] == []  # which is the home's here


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


def test_doctor_says_what_works(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor")

    assert done.returncode == 0, done.stdout
    for what in ("Python", "Java", "GPU", "disk", "Prefect"):
        assert what in done.stdout


def test_a_lease_that_is_lost_is_one_line_and_exit_code_1() -> None:
    def build() -> None:
        raise LeaseLost("train-0123: the lease is lost; nothing was published")

    ended = ended_by(build)

    assert (ended.code, ended.err) == (1, "pretrieve: train-0123: the lease is lost; nothing was published\n")
