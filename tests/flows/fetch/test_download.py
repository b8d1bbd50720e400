"""Downloads that were interrupted: by the connection, by the server, or by a kill."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import pytest

from flows.fetch.fetch import fetch
from storage.datasets.support.official_files import UNFINISHED
from storage.errors import UserError
from tests.flows.fetch.publisher import Publisher, publish

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)
TRIPLES = gzip.compress(bytes(range(256)) * 4_000, compresslevel=0)
TRIPLES_NAME = "qidpidtriples.train.full.2.tsv.gz"


@pytest.fixture
def triples(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """One file of a megabyte is published."""
    publish(publisher, monkeypatch, {"msmarco-passage/train/docpairs/v2": TRIPLES})
    return publisher


def begun(folder: Path, content: bytes) -> None:
    """Leave an incomplete download, as after a kill."""
    (folder / UNFINISHED).mkdir()
    (folder / UNFINISHED / f"{TRIPLES_NAME}.part").write_bytes(content)


def test_a_download_resumes_where_the_connection_broke(triples: Publisher, tmp_path: Path) -> None:
    triples.cut = 3

    fetch("msmarco_triples", tmp_path)

    assert (tmp_path / TRIPLES_NAME).read_bytes() == TRIPLES
    starts = [
        int(results[0]) if (results := re.findall(r"\d+", requested or "")) else 0 for _, requested in triples.requests
    ]
    assert len(starts) == 4
    assert starts == sorted(set(starts))
    assert starts[0] == 0


def test_a_download_resumes_after_a_kill(
    triples: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.fetch.download.REPORT_SECONDS", 0.0)
    begun(tmp_path, TRIPLES[:1_000])

    fetch("msmarco_triples", tmp_path)

    assert (tmp_path / TRIPLES_NAME).read_bytes() == TRIPLES
    assert [requested for _, requested in triples.requests] == ["bytes=1000-"]
    assert re.search(
        rf"{re.escape(TRIPLES_NAME)}: .* of 1000\.\d KiB \(100%\), .*/s, .* s left", capsys.readouterr().out
    )
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("content", [TRIPLES, TRIPLES + b"more", b"of another file"])
def test_whatever_an_interrupted_download_left_the_result_is_the_published_file(
    content: bytes, triples: Publisher, tmp_path: Path
) -> None:
    begun(tmp_path, content)

    if content == b"of another file":  # the end is appended to another file's beginning
        with pytest.raises(UserError, match="not the expected file"):
            fetch("msmarco_triples", tmp_path)
    fetch("msmarco_triples", tmp_path)
    assert (tmp_path / TRIPLES_NAME).read_bytes() == TRIPLES


def test_a_server_without_ranges_and_a_busy_one_are_coped_with(triples: Publisher, tmp_path: Path) -> None:
    triples.ranges, triples.fails = False, 2
    begun(tmp_path, TRIPLES[:1_000])

    fetch("msmarco_triples", tmp_path)

    assert (tmp_path / TRIPLES_NAME).read_bytes() == TRIPLES


def test_another_file_than_the_known_one_is_refused(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, monkeypatch, {"msmarco-passage/train/docpairs/v2": b"1\t2\t3\n"})
    publisher.files = dict.fromkeys(publisher.files, b"1\t2\t4\n")

    with pytest.raises(UserError, match="not the expected file"):
        fetch("msmarco_triples", tmp_path)
    assert not [path for path in tmp_path.rglob("*.gz*") if path.is_file()]
