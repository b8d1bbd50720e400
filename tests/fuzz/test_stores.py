"""Manifests and lists of versions of any content: each command ends, and names what is damaged in lines."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.store.store import Store
from tasks.session import Execution, Session, session
from tests.flows.test_terminal import Named, initialise
from tests.fuzz.odd import SECONDS, check, edited, fuzz, odd_texts, odd_values, places_of
from tests.in_process import pretrieve

VERSION = b'{"at": "2026-01-01T00:00:00+00:00", "queries": "a/b", "passages": "c/d", "quality": "e/f"}\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact[Any]]:
    """An artifact in a store of its own."""
    root = tmp_path_factory.mktemp("store")
    with session(Session(Store.open_or_new(root), Execution(workers=1, threads=1))):
        yield initialise(settings=Named(name="one"))


@st.composite
def other_manifests(draw: st.DrawFn, text: bytes) -> bytes:
    """The manifest with a value replaced, dropped or added, or with other bytes."""
    if draw(st.booleans()):
        return draw(edited(text))
    value = json.loads(text)
    *path, key = draw(st.sampled_from([keys for keys in places_of(value) if keys]))
    inner: Any = value
    for step in path:
        inner = inner[step]
    what = draw(st.sampled_from(["replace", "drop", "add"]))
    if what == "drop":
        del inner[key]
    elif what == "add" and isinstance(inner, dict):
        inner[draw(odd_texts)] = draw(odd_values)
    else:
        inner[key] = draw(odd_values)
    return json.dumps(value).encode()


@given(data=st.data())
@fuzz(25)
def test_a_manifest(built: Artifact[Any], data: st.DataObject) -> None:
    text = data.draw(other_manifests((built.path / "manifest.json").read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(built.path.parent.parent, root := Path(folder, "store"))
        (root / built.stage / built.key / "manifest.json").write_bytes(text)
        check(pretrieve("show", built.key, "--store", str(root), seconds=SECONDS))
        check(pretrieve("gc", "--store", str(root), seconds=SECONDS))
        ended = pretrieve("verify", "--store", str(root), seconds=SECONDS)
    check(ended, codes=(0, 1, 2))
    assert ended.code != 1 or all(line.startswith("pretrieve: ") for line in ended.err.splitlines())


@given(edited(VERSION * 3))
@fuzz(25)
def test_versions(built: Artifact[Any], text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(built.path.parent.parent, root := Path(folder, "store"))
        (reports := root / "reports" / "one-queries").mkdir(parents=True)
        (reports / "versions.jsonl").write_bytes(text)
        for command in (["list"], ["stats", "one"], ["stats", "one@2"], ["diff", "one@1", "b"]):
            check(pretrieve("queries", *command, "--store", str(root), seconds=SECONDS))
