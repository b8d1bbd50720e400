"""Downloads that were interrupted: by the connection, by the server, or by a kill."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import pytest
from requests import RequestException, Response

from flows.fetch.download import CHUNK, Download, Progress, download_file, seconds_to_wait
from flows.fetch.fetch import fetch
from storage.datasets.support.completeness import UNFINISHED
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


def test_a_part_of_another_version_is_not_completed_with_the_rest_of_a_new_one(
    publisher: Publisher, tmp_path: Path
) -> None:
    download, file = Download(f"{publisher.url}/file"), tmp_path / "file"
    old, new = b"old" * CHUNK, b"new" * CHUNK
    publisher.files["/file"], publisher.cut = old, 1
    (tmp_path / "file.part").write_bytes(b"of an unknown version")

    class Replaced(Progress):
        """Has the publisher replace the file after the first bytes."""

        def add(self, name: str, received: int) -> None:
            super().add(name, received)
            publisher.files["/file"] = new

    download_file(download, file, Replaced(None), "")

    assert file.read_bytes() == new
    assert [requested is None for _, requested in publisher.requests] == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_download_without_checksum_resumes_after_a_kill_if_its_version_is_published(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.files["/file"], file = TRIPLES, tmp_path / "file"

    class Interrupted(Progress):
        def add(self, name: str, received: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_file(Download(f"{publisher.url}/file"), file, Interrupted(None), "")
    arrived = (tmp_path / "file.part").stat().st_size
    publisher.requests.clear()

    download_file(Download(f"{publisher.url}/file"), file, Progress(None), "")

    assert file.read_bytes() == TRIPLES
    assert publisher.requests == [("/file", f"bytes={arrived}-")]


def test_a_file_of_another_size_than_the_known_one_is_refused(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["/file"] = b"short"

    with pytest.raises(UserError, match=r"not the expected file \(5 bytes, expected 1,234\)"):
        download_file(Download(f"{publisher.url}/file", size=1234), tmp_path / "file", Progress(None), "")
    assert list(tmp_path.iterdir()) == []


def test_each_failure_in_a_row_waits_longer_unless_the_server_says_how_long() -> None:
    def busy(**headers: str) -> RequestException:
        response = Response()
        response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        return RequestException(response=response)

    assert [seconds_to_wait(busy(), failures) for failures in (0, 1, 2, 8)] == [0, 4, 8, 60]
    assert [seconds_to_wait(busy(Retry_After=value), 1) for value in ("7", "86400", "tomorrow")] == [7, 600, 4]
    assert seconds_to_wait(RequestException(), 1) == 4


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
