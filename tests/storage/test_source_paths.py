"""A relative path of a file that a recipe names is searched where collections are, whoever starts the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.artifact import Source
from storage.store import sources
from tests.tiny import save_backbone

QUERIES = '{"passage_id": "p1", "query": "what melts ice"}\n'


@pytest.mark.parametrize(("source_of", "text"), [(sources.queries, QUERIES), (sources.word_list, "click here\n")])
def test_files_are_found_below_the_collections(
    source_of: Callable[[str], Source], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collections").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "collections" / "given.jsonl"
    file.write_text(text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PRETRIEVE_COLLECTIONS", str(tmp_path / "collections"))

    assert source_of("given.jsonl").path == file
    (tmp_path / "elsewhere" / "given.jsonl").write_text(text)
    assert source_of("given.jsonl").path == tmp_path / "elsewhere" / "given.jsonl"  # the working folder comes first


def test_files_of_other_programs_are_no_part_of_a_model(tmp_path: Path) -> None:
    """A download notes its time in `.cache`, and a file manager leaves `.DS_Store`."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_backbone(folder)
    key = sources.weights(str(folder)).key
    for name in (".cache/huggingface/download/config.json.metadata", ".DS_Store", ".git/HEAD"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("changes with time")

    assert sources.weights(str(folder)).key == key
    (folder / "vocab.txt").write_text("another word\n")
    assert sources.weights(str(folder)).key != key
