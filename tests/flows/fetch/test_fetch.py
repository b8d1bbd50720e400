"""Fetching official files, from a server on this machine with miniature files in the layout of the publishers'."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import importlib.util
import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.fetch import official_files
from flows.fetch.fetch import fetch
from flows.fetch.official_files import OFFICIAL, Official, Remote
from storage.datasets import dataset_loader
from storage.datasets.support.completeness import UNFINISHED
from storage.errors import UserError
from tasks.runtime.formatting import in_units
from tests.console import command
from tests.flows.fetch.publisher import Publisher, known_url, publish, tar, zipped

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)


COLLECTION = "msmarco-passage/collectionandqueries"
MSMARCO = {
    COLLECTION: tar({
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
TITLED = tar({"marco/para.txt": "0\t-\tsalt", "marco/para.title.txt": "0\tRoads in winter\n1\t-\n"})
ADDRESSED = {  # what has an address of its own, by the address's path
    "/corpus/marco.tar.gz": TITLED,
    "/datasets/msmarco-hard-negatives.jsonl.gz": gzip.compress(b'{"qid": 5, "pos": [1], "neg": {}}\n'),
    "/msmarcoranking/msmarco-docs.tsv.gz": gzip.compress(b"D1\thttp://a\tRoads\tsalt melts ice. it does.\n"),
}
TEVATRON = "/datasets/Tevatron/msmarco-passage-corpus/resolve/5b250efbb2149162100c58f2394e990651b47beb/corpus.jsonl.gz"


@pytest.fixture
def msmarco(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """All of MS MARCO is published."""
    publish(publisher, monkeypatch, MSMARCO)
    publisher.files |= ADDRESSED
    return publisher


def test_a_loader_reads_all_that_is_fetched(
    msmarco: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, loader = tmp_path / "msmarco", dataset_loader("msmarco")

    fetch("msmarco", folder)

    passages = [(row["title"], row["text"]) for row in loader.texts(folder, "corpus")]
    assert passages == [("Roads in winter", "salt melts ice"), ("", "a cat")]
    assert [row["doc_id"] for row in loader.texts(folder, "documents")] == ["D1"]
    topics = {split: ([*loader.queries(folder, split)], [*loader.qrels(folder, split)])
              for split in ("train", "dev", "dl19", "dl20")}  # fmt: skip
    assert {split: (queries[0]["text"], qrels[0]["grade"]) for split, (queries, qrels) in topics.items()} == {
        "train": ("cat?", 1), "dev": ("what melts ice?", 1), "dl19": ("ice", 2), "dl20": ("salt", 3),
    }  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "2019qrels-pass.txt", "2020qrels-pass.txt", "collection.tsv", "msmarco-docs.tsv.gz",
        "msmarco-hard-negatives.jsonl.gz", "msmarco-test2019-queries.tsv.gz", "msmarco-test2020-queries.tsv.gz",
        "para.title.txt", "qrels.dev.small.tsv", "qrels.train.tsv", "queries.dev.small.tsv", "queries.dev.tsv",
        "queries.train.tsv",
    ]  # fmt: skip
    total = sum(map(len, msmarco.files.values()))
    out = capsys.readouterr().out
    assert (
        f"msmarco: 10 files to fetch, {in_units(total)} (passages {in_units(len(MSMARCO[COLLECTION]))}, topics " in out
    )
    assert f"titles {len(TITLED)} B, documents" in out
    assert out.index("files to fetch") < out.index("fetching ")


def test_a_file_in_the_folder_is_not_fetched_again(msmarco: Publisher, tmp_path: Path) -> None:
    fetch("msmarco", tmp_path / "msmarco")
    (tmp_path / "msmarco" / "2019qrels-pass.txt").unlink()
    packed = tmp_path / "msmarco" / "msmarco-docs.tsv.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))  # as a user may unpack it
    packed.unlink()
    msmarco.requests.clear()

    fetch("msmarco", tmp_path / "msmarco")

    assert [path for path, _ in msmarco.requests] == ["/2019qrels-pass.txt"]


def test_parts_are_left_out(msmarco: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "msmarco"
    begun = folder / UNFINISHED / "msmarco-docs.tsv.gz.part"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"of an earlier fetch")

    ended = command(capsys, "fetch", "msmarco", folder, "--without", "documents", "--without", "titles")

    assert ended.code == 0, ended.err
    assert "complete, without documents, titles" in ended.out
    assert "documents" not in ended.out.partition("files to fetch")[2].partition("\n")[0]
    assert begun.exists()
    assert {"msmarco-docs.tsv.gz", "para.title.txt"}.isdisjoint(path.name for path in folder.iterdir())
    refused = command(capsys, "fetch", "msmarco", folder, "--without", "document")
    assert refused.code == 2
    assert "--without document: msmarco has no such part; did you mean documents?" in refused.err


def test_another_publisher_of_the_same_titles_is_asked_where_the_first_fails(
    msmarco: Publisher, tmp_path: Path
) -> None:
    rows = [{"docid": "0", "title": "Roads\tin winter", "text": "salt"}, {"docid": "1", "title": "", "text": "a cat"}]
    msmarco.files[TEVATRON] = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    del msmarco.files["/corpus/marco.tar.gz"]

    fetch("msmarco", tmp_path)

    assert (tmp_path / "para.title.txt").read_text() == "0\tRoads in winter\n1\t-\n"


def test_a_mirror_has_files_that_the_publisher_refuses(msmarco: Publisher, tmp_path: Path) -> None:
    content = msmarco.files.pop("/2019qrels-pass.txt")
    msmarco.files[f"/mirror/{hashlib.md5(content, usedforsecurity=False).hexdigest()}"] = content

    fetch("msmarco", tmp_path)

    assert (tmp_path / "2019qrels-pass.txt").read_bytes() == content


@pytest.mark.parametrize("name", ["2019qrels-pass.txt", "marco.tar.gz"])
def test_a_wrong_file_that_was_put_there_by_hand_is_named_and_kept(
    name: str, msmarco: Publisher, tmp_path: Path
) -> None:
    by_hand = tmp_path / UNFINISHED / name
    by_hand.parent.mkdir()
    by_hand.write_bytes(b"another file\n")

    with pytest.raises(UserError, match=re.escape(str(by_hand))):
        fetch("msmarco", tmp_path)

    assert by_hand.read_bytes() == b"another file\n"
    by_hand.unlink()
    fetch("msmarco", tmp_path)


def test_too_little_room_is_noticed_before_anything_is_fetched(
    msmarco: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.fetch.fetch.shutil.disk_usage", lambda path: SimpleNamespace(free=100))

    with pytest.raises(UserError, match=r"100 B are free; make room; --without PART leaves a part out"):
        fetch("msmarco", tmp_path)
    assert msmarco.requests == []


FORUMS = {f"cqadupstack/{forum}/{name}": "{}\n" for forum in ("android", "tex")
          for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "members", "expected"),
    [
        ("scifact", {f"scifact/{file}": "{}\n" for file in (
            "corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "README", "../escaped/corpus.jsonl")},
         ["corpus.jsonl", "qrels/test.tsv", "qrels/train.tsv", "queries.jsonl"]),
        ("cqadupstack", FORUMS, sorted(file.partition("/")[2] for file in FORUMS)),
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
    "nothing": ("nq.qa.csv", None, "answers HTTP 404.*put nq.qa.csv into"),
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
    unreachable = Remote("http://127.0.0.1:9/marco.tar.gz", ("para.title.txt",), archive=True, part="titles")
    monkeypatch.setitem(official_files.OFFICIAL, "tiny", Official((unreachable,), "terms"))

    with pytest.raises(UserError) as raised:
        fetch("tiny", tmp_path / "tiny")
    assert "cannot be reached (ConnectionError)" in str(raised.value)
    assert f"put para.title.txt into {tmp_path / 'tiny'} by hand; if only this server is down, --without titles" in str(
        raised.value
    )
    assert list(tmp_path.iterdir()) == []  # no empty folder stays


def test_an_unknown_name_lists_the_known_ones(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one of msmarco, .*natural_questions, .*\(or beir/NAME"):
        fetch("trec-robust", tmp_path)
    with pytest.raises(UserError, match=r"ms_marco: no such collection; did you mean msmarco\?"):
        fetch("ms_marco", tmp_path)
    with pytest.raises(UserError, match=r"unknown collection; expected one of .*scifact"):
        fetch("beir/sci-fact", tmp_path)


@pytest.mark.parametrize(
    "remote", [remote for known in OFFICIAL.values() for remote in known.remotes], ids=lambda r: r.at
)
def test_ir_datasets_knows_the_addresses_that_are_its_own(remote: Remote, publisher: Publisher) -> None:
    known = remote.at if "://" in remote.at or remote.at.startswith("hub:") else known_url(remote.at)

    if not remote.is_source and not known.startswith("hub:"):
        special = {"2019qrels-pass.txt", "2020qrels-pass.txt"}
        assert known.endswith(remote.names[0]) or remote.names[0] in special


def test_a_collection_of_which_a_file_is_missing_stays_marked_as_unfinished(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.files = {"/first.parquet": b"PAR1 and more"}
    remotes = tuple(Remote(f"{publisher.url}/{name}.parquet", (f"{name}.parquet",)) for name in ("first", "second"))
    monkeypatch.setitem(official_files.OFFICIAL, "tiny", Official(remotes, "terms"))

    with pytest.raises(UserError, match="answers HTTP 404"):
        fetch("tiny", tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [UNFINISHED, "first.parquet"]


def test_a_fetch_that_another_excludes_leaves_its_folders(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(UserError, match="another `pretrieve fetch` writes it"):
            fetch("msmarco", tmp_path)
    finally:
        os.close(descriptor)

    assert (tmp_path / UNFINISHED).is_dir()
