"""Fetching into a folder that an earlier fetch has filled, or that another one writes."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
from pathlib import Path

import pytest

from flows.fetch.fetch import fetch
from storage.datasets import wikipedia
from storage.errors import UserError
from tests.flows.fetch.publisher import Publisher, publish_hub_folder
from tests.flows.miniature import hub_folders, parquet

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)
ROWS = [{"title": "Salt", "text": "Salt melts ice."}, {"title": "Cat", "text": "A cat sleeps."}]
ADDRESS = "wikimedia/wikipedia@main:20231101.en"


@pytest.fixture
def hub(publisher: Publisher) -> Publisher:
    """The hub with two files of articles."""
    files = hub_folders(ROWS)[ADDRESS] | {"0001.parquet": parquet(id=["9"], title=["Ox"], text=["Oxen pull."])}
    publish_hub_folder(publisher, ADDRESS, files)
    return publisher


def test_a_complete_folder_of_the_hub_is_fetched_again_without_a_request(hub: Publisher, tmp_path: Path) -> None:
    fetch("wikipedia", tmp_path)
    hub.requests.clear()
    hub.files.clear()

    fetch("wikipedia", tmp_path)

    assert hub.requests == []
    assert [row["title"] for row in wikipedia.texts(tmp_path, "corpus")] == ["Salt", "Cat", "Ox"]


def test_what_is_missing_of_a_listing_is_fetched(hub: Publisher, tmp_path: Path) -> None:
    fetch("wikipedia", tmp_path)
    (tmp_path / "0001.parquet").unlink()
    hub.requests.clear()

    fetch("wikipedia", tmp_path)

    assert [path.rpartition("/")[2] for path, _ in hub.requests] == ["20231101.en", "0001.parquet"]


def test_all_pages_of_a_listing_are_read(hub: Publisher, tmp_path: Path) -> None:
    first = next(path for path in hub.files if path.startswith("/api/"))
    listed, second = json.loads(hub.files[first]), f"{first}?cursor=second"
    hub.files |= {first: json.dumps(listed[:1]).encode(), second: json.dumps(listed[1:]).encode()}
    hub.next_pages = {first: second}

    fetch("wikipedia", tmp_path)

    assert [row["title"] for row in wikipedia.texts(tmp_path, "corpus")] == ["Salt", "Cat", "Ox"]


def test_a_file_of_another_size_than_the_listed_one_is_refused(hub: Publisher, tmp_path: Path) -> None:
    path = next(path for path in hub.files if path.endswith("0001.parquet"))
    hub.files[path] += b"more"

    with pytest.raises(UserError, match="not the expected file"):
        fetch("wikipedia", tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_listing_is_made_again(content: str, hub: Publisher, tmp_path: Path) -> None:
    (tmp_path / ".hub.json").write_text(content)

    fetch("wikipedia", tmp_path)

    assert len(list(wikipedia.texts(tmp_path, "corpus"))) == 3


def test_a_second_fetch_into_a_folder_is_refused_until_the_first_has_ended(hub: Publisher, tmp_path: Path) -> None:
    folder = tmp_path / "wikipedia"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with pytest.raises(UserError, match=f"{folder}: another `pretrieve fetch` writes it; wait for its end"):
        fetch("wikipedia", folder)
    assert hub.requests == []
    os.close(lock)
    fetch("wikipedia", folder)


def test_a_folder_that_cannot_be_created_is_named(hub: Publisher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")

    with pytest.raises(UserError, match=r"file/wikipedia: cannot be written \(Not a directory\)"):
        fetch("wikipedia", tmp_path / "file" / "wikipedia")


def test_nothing_is_left_of_a_fetch_that_is_refused(hub: Publisher, tmp_path: Path) -> None:
    hub.files.clear()

    with pytest.raises(UserError, match="cannot be listed"):
        fetch("wikipedia", tmp_path / "wikipedia")
    assert list(tmp_path.iterdir()) == []
