"""Fetching official files: from a server on this machine, of miniature archives that lie as the publishers' do."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import pkgutil
import random
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.fetch import UNFINISHED, fetch
from storage.datasets import dataset_loader
from storage.datasets.support import official_files
from storage.datasets.support.official_files import OFFICIAL, Official, Remote
from storage.errors import UserError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)


@dataclass
class Publisher:
    """A server whose files, by path, can be given and taken away; `cut` connections break after half a file."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Paths, and the requested range."""
    cut: int = 0


@pytest.fixture(scope="module")
def server() -> Iterator[Publisher]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            byte_range = self.headers.get("Range")
            published.requests.append((self.path, byte_range))
            content = published.files.get(self.path)
            if content is None:
                self.send_error(404, "there is no such file")
                return
            start = int(re.findall(r"\d+", byte_range)[0]) if byte_range else 0
            self.send_response(206 if byte_range else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if published.cut:
                published.cut -= 1
                content = content[: len(content) // 2]
            self.wfile.write(content[start:])

        def log_message(self, *of: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    published = Publisher(f"http://127.0.0.1:{running.server_port}")
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield published
    running.shutdown()
    running.server_close()


@pytest.fixture
def publisher(server: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Has published nothing; ir_datasets keeps its own files in the test's folder."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "ir_datasets"))
    monkeypatch.setenv("IR_DATASETS_DL_DISABLE_PBAR", "true")
    server.files, server.requests, server.cut = {}, [], 0
    return server


def publish(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes]) -> None:
    """Give files by their SECTION/KEY of ir_datasets, with their true checksums."""
    from ir_datasets.util import DownloadConfig

    contents: dict[str, dict[str, Any]] = {}
    for at, content in files.items():
        section, _, key = at.partition("/")
        name = known_url(at).rpartition("/")[2]
        publisher.files[f"/{name}"] = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        contents.setdefault(section, {})[key] = {"url": f"{publisher.url}/{name}", "expected_md5": md5}
    monkeypatch.setattr(DownloadConfig, "_contents", contents)


def known_url(at: str) -> str:
    """The address that ir_datasets really has."""
    section, _, key = at.partition("/")
    return str(json.loads(pkgutil.get_data("ir_datasets", "etc/downloads.json") or b"")[section][key]["url"])


def tar(members: Mapping[str, str]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return into.getvalue()


def zipped(members: Mapping[str, str]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return into.getvalue()


MSMARCO = {
    "msmarco-passage/collectionandqueries": tar({
        "collection.tsv": "0\tsalt melts ice\n1\ta cat\n", "queries.train.tsv": "9\tnot this one\n",
        "queries.dev.small.tsv": "7\twhat melts ice?\n", "qrels.dev.small.tsv": "7\t0\t0\t1\n",
    }),
    "msmarco-passage/queries": tar({"queries.train.tsv": "5\tcat?\n", "queries.dev.tsv": "7\twhat melts ice?\n"}),
    "msmarco-passage/train/qrels": b"5\t0\t1\t1\n",
    "msmarco-passage/trec-dl-2019/queries": gzip.compress(b"3\tice\n"),
    "msmarco-passage/trec-dl-2020/queries": gzip.compress(b"4\tsalt\n"),
    "msmarco-passage/trec-dl-2019/qrels": b"3 Q0 0 2\n",
    "msmarco-passage/trec-dl-2020/qrels": b"4 0 0 3\n",
}  # fmt: skip


def test_what_is_fetched_is_what_the_reader_reads(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, monkeypatch, MSMARCO)
    folder, msmarco = tmp_path / "msmarco", dataset_loader("msmarco")

    fetch("msmarco", folder)

    assert [row["text"] for row in msmarco.texts(folder, "corpus")] == ["salt melts ice", "a cat"]
    found = {split: ([*msmarco.queries(folder, split)], [*msmarco.qrels(folder, split)])
             for split in ("train", "dev", "dl19", "dl20")}  # fmt: skip
    assert {split: (queries[0]["text"], qrels[0]["grade"]) for split, (queries, qrels) in found.items()} == {
        "train": ("cat?", 1), "dev": ("what melts ice?", 1), "dl19": ("ice", 2), "dl20": ("salt", 3),
    }  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "2019qrels-pass.txt", "2020qrels-pass.txt", "collection.tsv", "msmarco-test2019-queries.tsv.gz",
        "msmarco-test2020-queries.tsv.gz", "qrels.dev.small.tsv", "qrels.train.tsv", "queries.dev.small.tsv",
        "queries.dev.tsv", "queries.train.tsv",
    ]  # fmt: skip


def test_what_is_there_is_not_fetched_again(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, monkeypatch, MSMARCO)
    fetch("msmarco", tmp_path / "msmarco")
    (tmp_path / "msmarco" / "2019qrels-pass.txt").unlink()
    publisher.requests.clear()

    fetch("msmarco", tmp_path / "msmarco")

    assert [path for path, _ in publisher.requests] == ["/2019qrels-pass.txt"]


def test_a_broken_download_resumes(publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(bytes(range(256)) * 4_000, compresslevel=0)
    publish(publisher, monkeypatch, {"msmarco-passage/train/docpairs/v2": content})
    publisher.cut = 1

    fetch("msmarco_triples", tmp_path)

    assert (tmp_path / "qidpidtriples.train.full.2.tsv.gz").read_bytes() == content
    first, second = (byte_range for _, byte_range in publisher.requests)
    assert first is None
    assert second is not None
    assert re.fullmatch(r"bytes=[1-9]\d+-", second)  # not from the start


def test_another_file_than_the_known_one_is_refused(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, monkeypatch, {"msmarco-passage/train/docpairs/v2": b"1\t2\t3\n"})
    publisher.files = dict.fromkeys(publisher.files, b"1\t2\t4\n")

    with pytest.raises(UserError, match="not the expected file"):
        fetch("msmarco_triples", tmp_path)
    assert not [path for path in tmp_path.rglob("*.gz*") if path.is_file()]


FORUMS = {f"cqadupstack/{forum}/{name}": "{}\n" for forum in ("android", "tex")
          for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "members", "expected"),
    [
        ("scifact", {f"scifact/{each}": "{}\n" for each in (
            "corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "README", "../escaped/corpus.jsonl")},
         ["corpus.jsonl", "qrels/test.tsv", "qrels/train.tsv", "queries.jsonl"]),
        ("cqadupstack", FORUMS, sorted(each.partition("/")[2] for each in FORUMS)),
    ],
)  # fmt: skip
def test_beirs_archives_lose_their_outer_folder(
    name: str, members: dict[str, str], expected: list[str], publisher: Publisher, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    publish(publisher, monkeypatch, {f"beir/{name}": zipped(members)})
    folder = tmp_path / "beir" / name

    fetch(f"beir/{name}", folder)

    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == expected
    assert not (tmp_path / "beir" / "escaped").exists()


def test_an_archive_that_was_unpacked_in_part_is_unpacked_again(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, monkeypatch, {"beir/cqadupstack": zipped(FORUMS)})
    (tmp_path / UNFINISHED).mkdir()
    (tmp_path / UNFINISHED / "cqadupstack.zip").write_bytes(zipped(FORUMS))  # as after a kill
    (tmp_path / "tex").mkdir()
    (tmp_path / "tex" / "corpus.jsonl").write_text("{}\n")

    fetch("beir/cqadupstack", tmp_path)

    assert len(list(tmp_path.rglob("*.*"))) == len(FORUMS)
    assert publisher.requests == []


TITLES = tar({"marco/para.title.txt": random.Random(1).randbytes(9_000).hex()})
ADDRESSES = {
    "a web page": ("nq.qa.csv", b"<!DOCTYPE html><p>moved", "a web page"),
    "no archive": ("marco.tar.gz", b"moved", "the download is no complete archive"),
    "half an archive": (
        "marco.tar.gz",
        TITLES[:-900],
        "no complete archive",
    ),
    "another archive": ("marco.tar.gz", tar({"marco/para.txt": "0\ttext"}), "expected para.title.txt in the archive"),
    "nothing": ("nq.qa.csv", None, "a web page"),  # the server's page for 404
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_where_no_checksum_is_known_what_came_is_looked_at(
    case: str, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content, expected = ADDRESSES[case]
    publisher.files = {} if content is None else {f"/{name}": content}
    archive = name.endswith(".tar.gz")
    remote = Remote(f"{publisher.url}/{name}", ("para.title.txt" if archive else name,), archive=archive)
    monkeypatch.setitem(official_files.OFFICIAL, "tiny", Official((remote,), "terms"))

    with pytest.raises(UserError, match=expected):
        fetch("tiny", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # the next attempt begins anew


def test_without_a_network_one_line_says_what_to_do(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = Remote("http://127.0.0.1:9/marco.tar.gz", ("para.title.txt",), archive=True)
    monkeypatch.setitem(official_files.OFFICIAL, "tiny", Official((unreachable,), "terms"))

    with pytest.raises(UserError) as raised:
        fetch("tiny", tmp_path)
    assert "cannot be reached (ConnectionError)" in str(raised.value)
    assert f"put para.title.txt into {tmp_path} by hand" in str(raised.value)


def test_an_unknown_name_lists_the_known_ones(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one of msmarco, .*natural_questions, or beir/NAME"):
        fetch("ms_marco", tmp_path)
    with pytest.raises(UserError, match=r"unknown collection; expected one of .*scifact"):
        fetch("beir/sci-fact", tmp_path)


@pytest.mark.parametrize("remote", [each for known in OFFICIAL.values() for each in known.remotes], ids=lambda r: r.at)
def test_ir_datasets_knows_what_we_ask_it_for(remote: Remote, publisher: Publisher) -> None:
    known = remote.at if "://" in remote.at else known_url(remote.at)

    if not remote.archive:
        special = {"2019qrels-pass.txt", "2020qrels-pass.txt"}
        assert known.endswith(remote.names[0]) or remote.names[0] in special
