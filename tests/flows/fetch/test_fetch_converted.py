"""Fetching collections that are converted to BEIR's layout, from a server on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from flows.fetch import official_files
from flows.fetch.fetch import fetch
from flows.fetch.official_files import OFFICIAL, Official
from storage.conversions import cisi, medquad
from storage.conversions.archive_digest import files_digest
from storage.datasets import beir
from storage.datasets.support.completeness import UNFINISHED
from storage.errors import UserError
from tests.console import command
from tests.flows.fetch.publisher import Publisher, publish, tar
from tests.storage.conversions import samples

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)
FOLDS = {f"fold_{k}_{part}": count for k in range(1, 6) for part, count in (("train", 16), ("dev", 4))}
SPLITS = {
    "squad": {"train": 16, "dev": 4, **FOLDS},
    "scifact": {"train": 4, "dev": 1},
    "medquad": {"train": 3, "dev": 1},
    "covid-qa": {"dev": 3},
    "cisi": {"dev": 2},
    "cranfield": {"dev": 2},
}
"""Numbers of judgements in the samples."""
CONVERTED = {name: OFFICIAL[name].remotes[0] for name in SPLITS}


@pytest.fixture
def published(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Samples of all converted collections at the paths of their publishers, with their true checksums."""
    files = samples.medquad_files()
    monkeypatch.setattr(medquad, "SHA256_OF_FILES", files_digest((p, c.encode()) for p, c in files.items()))
    of_cisi = samples.cisi_files()
    monkeypatch.setattr(cisi, "SHA256_OF_FILES", files_digest((p, c.encode()) for p, c in of_cisi.items()))
    publish(publisher, monkeypatch, {"beir/scifact": samples.scifact(), "cranfield/main": samples.cranfield()})
    contents = {
        "squad": samples.squad(),
        "medquad": samples.medquad(files),
        "covid-qa": samples.covid_qa(),
        "cisi": tar(of_cisi),
    }
    for name, content in contents.items():
        remote = official_files.OFFICIAL[name].remotes[0]
        publisher.files[remote.at.removeprefix(publisher.url)] = content
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}" if CONVERTED[name].checksum else None
        official_files.OFFICIAL[name] = Official((replace(remote, checksum=checksum),), "terms")
    return publisher


@pytest.mark.parametrize("name", CONVERTED)
def test_the_loader_reads_what_is_fetched_and_nothing_is_fetched_again(
    name: str, published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name

    ended = command(capsys, "fetch", name, folder)

    assert ended.code == 0, ended.err
    assert f"{name}: complete, in {folder}" in ended.out
    assert not (folder / UNFINISHED).exists()
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == set(CONVERTED[name].names)
    texts = {row["doc_id"] for row in beir.texts(folder, "corpus")}
    queries = {row["query_id"] for row in beir.queries(folder, "dev")}
    judged = {split: list(beir.qrels(folder, split)) for split in SPLITS[name]}
    assert {split: len(rows) for split, rows in judged.items()} == SPLITS[name]
    assert all(row["query_id"] in queries and row["doc_id"] in texts for rows in judged.values() for row in rows)
    assert beir.has_answers(folder, "dev") == (name in ("squad", "covid-qa"))
    published.requests.clear()
    fetch(name, folder)
    assert published.requests == []


def test_an_interrupted_download_resumes(published: Publisher, tmp_path: Path) -> None:
    begun = tmp_path / UNFINISHED / "dev-v1.1.json.part"
    begun.parent.mkdir()
    begun.write_bytes(samples.squad()[:1_000])

    fetch("squad", tmp_path)

    assert [requested for _, requested in published.requests] == ["bytes=1000-"]
    assert len(list(beir.qrels(tmp_path, "train"))) == 16


def test_another_file_is_refused_and_a_file_can_be_put_there_by_hand(published: Publisher, tmp_path: Path) -> None:
    address = next(path for path in published.files if path.endswith("dev-v1.1.json"))
    content = published.files[address]
    published.files[address] = content.replace(b"old", b"new")
    by_hand = tmp_path / UNFINISHED / "dev-v1.1.json"

    with pytest.raises(
        UserError, match=r"not the expected file .*create .*\.fetching, put it there by hand as dev-v1\.1\.json"
    ):
        fetch("squad", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    del published.files[address]
    with pytest.raises(UserError, match=r"answers HTTP 404"):
        fetch("squad", tmp_path)

    by_hand.parent.mkdir(parents=True, exist_ok=True)
    by_hand.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"\.fetching/dev-v1\.1\.json: not the expected file .*; delete it and run"):
        fetch("squad", tmp_path)
    assert by_hand.read_bytes() == content[:-1]
    by_hand.write_bytes(content)
    published.requests.clear()
    fetch("squad", tmp_path)
    assert published.requests == []
    assert len(list(beir.qrels(tmp_path, "fold_5_dev"))) == 4


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_fetched_is_checked(name: str) -> None:
    from ir_datasets.util import DownloadConfig

    remote = CONVERTED[name]

    if "://" not in remote.at:
        section, _, key = remote.at.partition("/")
        assert DownloadConfig.contents()[section][key]["expected_md5"]
    else:
        digests = {"medquad": medquad.SHA256_OF_FILES, "cisi": cisi.SHA256_OF_FILES}
        assert remote.checksum or len(digests[name]) == 64


@pytest.mark.parametrize("name", ["squad", "medquad", "covid-qa"])
def test_addresses_of_repositories_name_a_commit(name: str) -> None:
    assert [part for part in CONVERTED[name].at.replace(".tar.gz", "").split("/") if len(part) == 40]
