"""Object stores, against a server that speaks S3: exports are written to it, and collections read from it."""

from __future__ import annotations

import fcntl
import json
import logging
import socket
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import fsspec
import pytest

from flows.queries import export_command
from flows.queries.export_command import export_version
from flows.queries.partitions import partitions
from storage.datasets import beir
from storage.errors import UserError
from storage.remote_folders import mirror, must_be_free_at, upload
from storage.store import sources
from tests.flows.queries.test_export import Corpus, corpus

__all__ = ["corpus"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an empty bucket on a server of this process, which the environment names."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")

    server = server_module.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1", "NO_PROXY": "*",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("corpora")
        yield "s3://corpora"
    server.stop()


@pytest.mark.parametrize(
    ("format_name", "last"), [("datasets", "provenance.json"), ("partitioned", "provenance/tiny@2.json")]
)
def test_an_export_is_complete_with_its_provenance(
    format_name: str, last: str, bucket: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(export_command, "stored_version", lambda name, store: corpus)
    monkeypatch.setattr(export_command.Store, "open", lambda folder: None)
    caplog.set_level(logging.INFO, "werkzeug")
    url, local, system = f"{bucket}/{format_name}", tmp_path / "local", fsspec.filesystem("s3")

    said = export_version("tiny", url, format_name, dropped=False, store_folder=tmp_path)
    export_version("tiny", f"file://{local}", format_name, dropped=False, store_folder=tmp_path)

    assert said == f"tiny@2: 5 queries of 4 passages in {url}"
    names = {file.relative_to(local).as_posix(): file.read_bytes() for file in local.rglob("*") if file.is_file()}
    path = url.removeprefix("s3://")
    assert {name.removeprefix(f"{path}/"): system.cat_file(name) for name in system.find(path)} == names
    put = [record.getMessage() for record in caplog.records if '"PUT ' in record.getMessage()]
    assert f"/{path}/{last} " in put[-1]
    with pytest.raises(UserError, match=f"{url}: "):
        export_version("tiny", url, format_name, dropped=False, store_folder=tmp_path)


def test_a_version_that_is_uploaded_again_replaces_its_files_and_no_others(bucket: str, tmp_path: Path) -> None:
    system, folders = fsspec.filesystem("s3"), [f"corpora/lake/queries/version=tiny@{n}" for n in (2, 20)]
    for folder in folders:
        system.pipe_file(f"{folder}/generator=old/part.parquet", b"old")
    new = tmp_path / "queries" / "version=tiny@2" / "part.parquet"
    new.parent.mkdir(parents=True)
    new.touch()

    upload(tmp_path, f"{bucket}/lake", "none", replaced=partitions("tiny@2"))

    assert system.find("corpora/lake") == [f"{folders[0]}/part.parquet", f"{folders[1]}/generator=old/part.parquet"]


def test_a_collection_is_read_as_its_local_copy_and_followed(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path / "cache"))
    local, url, system = tmp_path / "collection", f"{bucket}/beir/small", fsspec.filesystem("s3")
    local.mkdir()

    def write(text: str) -> None:
        (local / "corpus.jsonl").write_text(json.dumps({"_id": "d0", "title": "", "text": text}) + "\n")
        system.put_file(str(local / "corpus.jsonl"), "corpora/beir/small/corpus.jsonl")

    write("a sun")
    system.pipe_file("corpora/beir/small/queries.jsonl", b'{"_id": "q", "text": "x"}\n')
    with sources.assuming_present() as absent:
        sources.dataset("beir", url, "corpus")
    assert f"{url} has not been copied" in absent[0]
    first = sources.dataset("beir", url, "corpus")
    assert first.key == sources.dataset("beir", str(local), "corpus").key
    assert [row["text"] for row in beir.texts(first.path, "corpus")] == ["a sun"]
    copied = (first.path / "corpus.jsonl").stat()
    assert (sources.dataset("beir", f"{url}/", "corpus").path / "corpus.jsonl").stat() == copied  # not copied again

    write("the moon")
    system.rm_file("corpora/beir/small/queries.jsonl")
    second = sources.dataset("beir", url, "corpus")
    assert [row["text"] for row in beir.texts(second.path, "corpus")] == ["the moon"]
    assert second.key != first.key
    assert not (second.path / "queries.jsonl").exists()
    assert sources.dataset("beir", f"file://{local}", "corpus").key == second.key


def test_a_file_of_which_only_the_size_is_known_is_copied_again(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    for text in ("one", "two"):
        system.pipe_file("/small/corpus.jsonl", text.encode())
        assert (mirror("memory://small", tmp_path) / "corpus.jsonl").read_text() == text


def test_a_plan_takes_the_copy_that_is_there_without_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))
    system, url = fsspec.filesystem("memory"), "memory://planned"
    system.pipe_file("/planned/corpus.jsonl", b'{"_id": "d0", "title": "", "text": "a sun"}\n')
    copied = sources.dataset("beir", url, "corpus")
    system.rm("/planned", recursive=True)

    with sources.assuming_present() as absent:
        assert sources.dataset("beir", url, "corpus").key == copied.key

    assert not absent


def test_another_process_that_copies_the_same_url_is_waited_for(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/shared/corpus.jsonl", b"one")
    folder = mirror("memory://shared", tmp_path)
    unfinished = folder / ".queries.jsonl.7-ab.tmp"  # of the other process

    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unfinished.touch()
        waiting = get_context("fork").Process(target=mirror, args=("memory://shared", tmp_path))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert unfinished.exists()
    waiting.kill()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/small/corpus.jsonl", b"one")
    (tmp_path / "file").touch()

    with pytest.raises(UserError, match=rf"{tmp_path / 'file'}.*: (?!.*credentials)"):
        mirror("memory://small", tmp_path / "file" / "cache")

    folder = mirror("memory://small", tmp_path)
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl").mkdir()
    with pytest.raises(UserError) as refusal:
        mirror("memory://small", tmp_path)
    assert "credentials" not in str(refusal.value)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://corpora/nothing", "no file is there"),
        ("s3://no-such-bucket/x", "no file is there|check the name, the credentials"),
        ("nostore://x/y", "cannot be opened"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_cannot_be_read_is_said(url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))

    with pytest.raises(UserError, match=words):
        sources.dataset("beir", url, "corpus")


@pytest.mark.usefixtures("bucket")
def test_an_export_makes_no_bucket(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")

    with pytest.raises(UserError, match=r"s3://typed-wrongly/x: .* check the name"):
        upload(tmp_path, "s3://typed-wrongly/x", "provenance.json")

    assert not fsspec.filesystem("s3").exists("typed-wrongly")


def test_a_server_that_is_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(url: str) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(fsspec.core, "url_to_fs", unknown)  # as for ftp://, which connects at once

    with pytest.raises(UserError, match=r"'ftp://nowhere/x': cannot be opened .*Name or service not known"):
        must_be_free_at("ftp://nowhere/x", "provenance.json", shared=False)
