"""A recipe without the titles that it reads: what is refused, and what the message says to do."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from flows.fetch.fetch import fetch
from tasks.estimates import generation_rate
from tests.console import command
from tests.flows.fetch.publisher import Publisher
from tests.flows.miniature import publish_all

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ir_datasets") is None, reason="ir_datasets is not installed: pip install -e '.[fetch]'"
)
ROWS = [
    {"title": "Roads in winter", "text": "Salt melts ice. It is white.", "query": "what melts ice?"},
    {"title": "Cats", "text": "A cat sleeps.", "query": "what sleeps?"},
]


@pytest.fixture
def published(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Publisher:
    """A miniature of every collection; fetched ones are found below the test's folder."""
    monkeypatch.setattr(generation_rate, "MOST_PARAMETERS", 0)  # measuring T5-base would take half a minute
    publish_all(publisher, monkeypatch, ROWS, num_train=1)
    monkeypatch.setenv("PRETRIEVE_COLLECTIONS", str(tmp_path / "collections"))
    return publisher


def test_a_recipe_with_titles_is_refused_without_them_and_says_what_to_do(
    published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "collections" / "msmarco"
    fetch("msmarco", folder, ["titles"])
    options = ("--store", tmp_path / "store")

    refused = command(capsys, "plan", "cot_mae_query_as_context", *options)

    assert refused.code == 2
    assert f"`pretrieve fetch msmarco_titles {folder}`" in refused.err
    assert refused.err.endswith("or set split.titles=false and evaluate.bm25_without_titles=false\n")
    change = ("--set", "split.titles=false")
    half = command(capsys, "plan", "cot_mae_query_as_context", *options, *change)
    assert "also set evaluate.bm25_without_titles=false" in half.err
    changes = (*change, "--set", "evaluate.bm25_without_titles=false")
    without = command(capsys, "plan", "cot_mae_query_as_context", *options, *changes)
    assert without.code == 0, without.err
    fetch("msmarco_titles", folder)
    assert command(capsys, "plan", "cot_mae_query_as_context", *options).code == 0


@pytest.mark.parametrize("name", ["retro_mae_released", "dup_mae_released"])
def test_one_message_names_all_changes_of_a_recipe_that_pre_trains_on_titles_too(
    name: str, published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch("msmarco", tmp_path / "collections" / "msmarco", ["titles"])
    options = ("--store", tmp_path / "store")

    refused = command(capsys, "plan", name, *options)
    changes = refused.err.strip().partition("or set ")[2].split(" and ")
    planned = command(capsys, "plan", name, *options, *(word for change in changes for word in ("--set", change)))

    assert refused.code == 2
    assert changes[:2] == ["split.titles=false", "split.pretrain_titles=never"]
    assert planned.code == 0, planned.err


def test_titles_of_a_part_of_a_joined_collection_are_required(
    published: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = tmp_path / "collections" / "wikipedia_bookcorpus_msmarco"
    fetch("msmarco", tmp_path / "collections" / "msmarco")
    fetch("wikipedia_bookcorpus_msmarco", joined, ["titles"])
    shutil.rmtree(joined / ".fetching", ignore_errors=True)
    options = ("--store", tmp_path / "store")

    refused = command(capsys, "plan", "dup_mae", *options, "--set", "split.pretrain_titles=every")

    assert refused.code == 2
    assert f"`pretrieve fetch msmarco_titles {joined}/msmarco`" in refused.err
