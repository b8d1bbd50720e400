"""A store that may only be read: commands that read work, those that write say so in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flows.build import published
from flows.queries.versions import note_version
from storage.rows import write_rows
from storage.store.marker import MARKER
from storage.store.store import Store
from storage.tables import Checkpoint, PseudoQueries
from tasks.stage import stage
from tests import finished_runs
from tests.console import command, read_only, tree

READING = {
    "plan": ["plan", "small/beir"],
    "show": ["show", "{key}"],
    "verify": ["verify"],
    "gc": ["gc"],
    "export": ["export", "{key}", "{out}/model"],
    "export-run": ["export-run", "one", "--to", "{out}/runs"],
    "compare": ["compare", "one", "two", "--html", "{out}/page.html"],
    "queries list": ["queries", "list"],
    "queries stats": ["queries", "stats", "corpus"],
    "queries diff": ["queries", "diff", "corpus@1", "corpus@2"],
    "queries export": ["queries", "export", "corpus", "{out}/queries"],
}
WRITING = {
    "reproduce": ["reproduce", "quickstart"],
    "gc": ["gc", "--delete", "--older-than", "0s"],
    "queries build": ["queries", "build", "quickstart"],
    "join": ["join"],
    "up": ["up"],
}


@stage(version=1, table=Checkpoint)
def given_checkpoint(out: Path) -> None:
    """One of a file."""
    (out / "config.json").write_text("{}")


@stage(version=1, table=PseudoQueries)
def given_queries(out: Path, passages: Any, *, settings: finished_runs.Made) -> None:
    """A query for each passage of `finished_runs.split_corpus`."""
    named = ["q1", *(f"d{n}" for n in range(1, finished_runs.DOCUMENTS))]
    write_rows(out, PseudoQueries, (
        {"passage_id": f"{doc}#{n}", "doc_id": doc, "passage_sha256": "0" * 64, "rank": 0,
         "query": f"question {settings.queries}", "generator": "g", "revision": "r", "ledger": "", "seed": 1, "draw": 0,
         "round_trip": None, "relevance": None, "kept": True, "reason": ""}
        for doc in named for n in range(2)
    ))  # fmt: skip


@pytest.fixture
def filled(store: Store) -> dict[str, str]:
    """A store with two runs, a checkpoint and two versions of a corpus; the key of the checkpoint."""
    finished_runs.run(store, "one")
    finished_runs.run(store, "two", noise=0.5)
    passages = finished_runs.split_corpus(settings=finished_runs.Made(queries=finished_runs.QUERIES))
    for number in (1, 2):
        queries = given_queries(passages, settings=finished_runs.Made(queries=number))
        note_version("corpus", queries, passages, passages, store)
    return {"key": given_checkpoint().key}


def test_reading_commands_work_on_a_read_only_store_and_writing_ones_are_refused(
    filled: dict[str, str], store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    before = tree(store.root)
    with read_only(store.root):
        for name, words in READING.items():
            inputs = [word.format(**filled, out=tmp_path / "out") for word in words]
            ended = command(capsys, *inputs, "--store", store.root)
            assert ended.code == 0, (name, ended.err)
        for name, words in WRITING.items():
            ended = command(capsys, *words, "--store", store.root)
            assert ended.code == 2, (name, ended.err)
            assert len(ended.lines) == 1
            assert f"{store.root}: the store cannot be written" in ended.err

    assert tree(store.root) == before
    written = {name.partition("/")[0] for name in tree(tmp_path / "out")}
    assert written == {"model", "runs", "page.html", "queries"}


def test_a_finished_run_is_published_outside_a_read_only_store(store: Store) -> None:
    built = finished_runs.run(store, "one")
    with read_only(store.root):
        known = published("one", built, store, [])
        new = published("another", built, store, [])

    assert known == store.root / "reports" / "one" / "report.html"
    assert store.root not in new.parents
    assert json.loads(new.with_suffix(".json").read_text())["inputs"]["report"] == built.key


def test_a_stage_that_is_cached_needs_no_lock(store: Store) -> None:
    model = given_checkpoint()
    with read_only(store.root):
        assert given_checkpoint() == model


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("closed", ["", MARKER, "reports", ".runs"])
def test_a_store_that_may_not_be_read_is_one_line(
    closed: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs.run(store, "one")
    (store.root / ".runs").mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    assert command(capsys, "gc", "--store", store.root).code == 0
    (store.root / closed).chmod(0)

    os.seteuid(65534)
    try:
        ended = command(capsys, "gc", "--store", store.root)
    finally:
        os.seteuid(0)

    assert ended.code == 2, ended.err
    assert len(ended.err.splitlines()) == 1
    assert str(store.root / closed) in ended.err
