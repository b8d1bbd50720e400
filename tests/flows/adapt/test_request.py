"""Requests of an adaptation: what is refused before any work, and what makes two requests the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.adapt.request import Request, check, started
from flows.queries.build import NAME
from flows.recipe.shipped import PROJECT
from storage.errors import UserError
from storage.store import sources


def test_a_folder_of_texts_has_neither_output_nor_store_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text("salt")
    monkeypatch.chdir(texts)

    with pytest.raises(UserError, match=r"--out adapted: is in the collection \., of which every text file"):
        check(Request(Path(), Path("adapted")), tmp_path / "artifacts")
    with pytest.raises(UserError, match="--store artifacts: is in the collection"):
        check(Request(Path(), Path("../adapted")), Path("artifacts"))
    (texts / "corpus.jsonl").write_text("")  # BEIR's layout, of which one file has the documents
    with pytest.raises(UserError, match="no folder on this machine"):
        check(Request(Path(), Path("adapted"), start="./none"), Path("artifacts"))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from flows.cli import main
sys.argv = ["pretrieve", "adapt", sys.argv[1]]
main()
"""


def test_a_collection_that_cannot_be_read_is_refused_before_pytorch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("id,name\n1,salt\n")

    def refused(name: str) -> str:
        command = [sys.executable, "-c", WITHOUT_TORCH, name]
        env = os.environ | {"PYTHONPATH": str(PROJECT)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "missing.csv: there is no such file or folder" in refused("missing.csv")
    assert "table.csv line 2: expected a column of texts" in refused("table.csv")


def test_equal_hours_are_the_same_request_from_python_and_the_command_line() -> None:
    assert Request(Path("x"), Path("y"), hours=1).as_json() == Request(Path("x"), Path("z"), hours=1.0).as_json()
    assert Request(Path("x"), Path("y"), hours=2).as_json() != Request(Path("x"), Path("y")).as_json()


def test_a_request_is_the_same_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_elsewhere = Request(tmp_path / "x.csv", Path("y"), judgements=tmp_path / "judged.tsv").as_json()
    monkeypatch.chdir(tmp_path)

    assert Request(Path("x.csv"), Path("y"), judgements=Path("judged.tsv")).as_json() == from_elsewhere
    assert Request(Path("z.csv"), Path("y"), judgements=Path("judged.tsv")).as_json() != from_elsewhere


@pytest.mark.parametrize("hours", [0, -1, float("nan")])
def test_hours_are_above_0(hours: float, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "salt"}\n')

    with pytest.raises(UserError, match="expected a number above 0"):
        check(Request(tmp_path / "texts.jsonl", tmp_path / "out", hours=hours), tmp_path / "artifacts")


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "3", None])
def test_a_seed_is_that_of_a_recipe(seed: Any, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "salt"}\n')

    with pytest.raises(UserError, match=rf"^seed: Input should be .*, found {re.escape(repr(seed))}$"):
        check(Request(tmp_path / "texts.jsonl", tmp_path / "out", seed=seed), tmp_path / "artifacts")
    check(Request(tmp_path / "texts.jsonl", tmp_path / "out", seed=0), tmp_path / "artifacts")


def test_a_preparation_that_fails_leaves_its_folder_to_the_corrected_request(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "salt"}\n')
    request = Request(tmp_path / "texts.jsonl", tmp_path / "out")
    (request.out).mkdir()

    def fail() -> None:
        with started(request):
            (request.out / "original").mkdir(exist_ok=True)
            (request.out / f"{request.name}.yaml").write_text("seed: 1\n")
            raise UserError("too few documents")

    with pytest.raises(UserError, match="too few"):
        fail()
    assert not request.out.exists()
    with started(request):
        pass
    with pytest.raises(UserError, match="too few"):
        fail()  # as an earlier call has begun: what it built is resumed
    assert sorted(path.name for path in request.out.iterdir()) == [f"{request.name}.yaml", "original", "request.json"]


def test_every_folder_has_a_valid_name_of_its_own(tmp_path: Path) -> None:
    names = [Request(Path("x"), tmp_path / name).name for name in ("a b", "a:b", "one/same", "two/same", "Ünï=1")]

    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)
    assert names[0].startswith("adapt_a_b_")
    assert Request(Path("x"), tmp_path / "one" / ".." / "same").name == Request(Path("x"), tmp_path / "same").name


def test_changed_options_need_another_folder_which_reuses_the_stages_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "salt"}\n')
    store = tmp_path / "artifacts"
    with started(Request(tmp_path / "texts.jsonl", tmp_path / "out")):
        pass

    with pytest.raises(UserError) as refused:
        check(Request(tmp_path / "texts.jsonl", tmp_path / "out", hours=2), store)

    expected = f"name another folder by --out, which reuses the finished stages of the same --store ({store})"
    assert expected in str(refused.value)


def test_an_adaptation_that_was_killed_as_it_began_resumes(tmp_path: Path) -> None:
    """A temporary file is all that there is then; other files are not written to."""
    (tmp_path / "texts.jsonl").write_text('{"text": "salt"}\n')
    request = Request(tmp_path / "texts.jsonl", tmp_path / "out")
    request.out.mkdir()
    (request.out / ".request.json.123-abcd.tmp").write_text("{")

    check(request, tmp_path / "artifacts")
    (request.out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="an empty one"):
        check(request, tmp_path / "artifacts")


def test_the_key_of_a_checkpoint_is_answered_with_the_command_that_writes_its_folder() -> None:
    with sources.assuming_present() as missing:  # asks no hub
        sources.weights("d447ba49")
        sources.weights("doc2query/none")

    assert "the folder that `pretrieve export d447ba49 DIR` writes" in missing[0]
    assert "pretrieve export" not in missing[1]
