"""No command reads a damaged artifact: it is named, moved to `.damaged`, and nothing is printed or written from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.build import published
from storage.errors import DamagedArtifact
from storage.store.store import Store
from storage.tables import Checkpoint
from tasks.retrieval.encode import Encoding, encode
from tasks.stage import stage
from tests.console import command
from tests.finished_runs import run
from tests.flows.test_search import given_passages, given_retriever
from tests.tiny import save_backbone


@stage(version=1, table=Checkpoint)
def weights(out: Path) -> None:
    """Write a tiny BERT."""
    save_backbone(out)


def flip(file: Path) -> None:
    """Change one bit, as a bad disk does: the size stays."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def only(store: Store, stage: str) -> Path:
    (folder,) = (store.root / stage).iterdir()
    return folder


def search(store: Store) -> tuple[Path, list[str]]:
    passages = given_passages()
    built = encode(
        passages=passages, checkpoint=given_retriever(), settings=Encoding(query_max_tokens=8, passage_max_tokens=12)
    )
    return passages.path / "part-00000.parquet", ["search", built.key, "river"]


def compare(store: Store) -> tuple[Path, list[str]]:
    run(store, "one")
    return only(store, "evaluate") / "queries.parquet", ["compare", "one", "one"]


def export_run(store: Store) -> tuple[Path, list[str]]:
    run(store, "one")
    return only(store, "split_corpus") / "part-00000.parquet", ["export-run", "one", "--to", "OUT"]


def export(store: Store) -> tuple[Path, list[str]]:
    built = weights()
    return built.path / "model.safetensors", ["export", built.key, "OUT"]


@pytest.mark.parametrize("reads", [search, compare, export_run, export])
def test_a_flipped_bit_is_named_before_anything_is_read(
    reads: Callable[[Store], tuple[Path, list[str]]], store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, arguments = reads(store)
    arguments = [str(tmp_path / "out") if argument == "OUT" else argument for argument in arguments]
    assert command(capsys, *arguments, "--store", store.root).code == 0
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    flip(file)

    ended = command(capsys, *arguments, "--store", store.root)

    assert (ended.code, len(ended.lines), ended.out) == (1, 1, "")
    assert f"{file}: expected sha256 " in ended.err
    assert f"moved to {store.root}/.damaged/" in ended.err
    assert "run its recipe again to rebuild it" in ended.err
    assert not (tmp_path / "out").exists()
    assert not file.exists()


def test_a_cached_run_does_not_publish_a_damaged_report(store: Store) -> None:
    built = run(store, "one")
    flip(built.path / "logs" / "curves.json")

    with pytest.raises(DamagedArtifact, match=r"curves\.json: expected sha256"):
        published("one", built, store, [])


def test_where_the_store_cannot_be_written_the_artifact_stays_and_this_is_said(store: Store) -> None:
    built = weights()
    flip(built.path / "model.safetensors")
    (store.root / ".damaged").touch()

    with pytest.raises(DamagedArtifact, match="the artifact stays, since the store cannot be written"):
        store.check(built)

    assert (built.path / "model.safetensors").exists()


@pytest.mark.parametrize("options", [[], ["--aside"]])
def test_verify_names_an_artifact_that_has_lost_its_manifest_and_leaves_it(
    options: list[str], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run(store, "one")
    folder = only(store, "evaluate")
    (folder / "manifest.json").unlink()

    ended = command(capsys, "verify", "--store", store.root, *options)

    assert ended.code == 1
    assert f"{folder}/manifest.json: the manifest is missing" in ended.err
    assert "whole" not in ended.out
    assert (folder / "queries.parquet").exists()
