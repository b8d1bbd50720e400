"""Names and paths of recipes, models, versions, artifacts and stores that cannot be: one line, exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage.store.store import Store
from tests.flows.test_cli import collection
from tests.flows.test_terminal import Named, initialise
from tests.in_process import refused

LONG = "x" * 5000
PATHS = {
    "home of an unknown user": ("dataset.path=~nosuchuser/x", r"dataset\.path: '~nosuchuser/x': .*no such user"),
    "weights at an unknown user's": ("backbone.weights=~nosuchuser", "no such user"),
    "no path": ("dataset.path=''", r"dataset\.path: expected a path"),
    "no weights": ("backbone.weights=''", "expected a path"),
    "package of two points": ("backbone.weights='package:..'", "expected package:NAME/FOLDER"),
    "package without a name": ("backbone.weights='package:'", "expected package:NAME/FOLDER"),
    "package with an empty part": ("backbone.weights=package:a..b/c", "expected package:NAME/FOLDER"),
    "package's part": ("backbone.weights=package:os.path/c", "expected package:NAME/FOLDER"),
    "folder above a package": ("backbone.weights=package:numpy/../../..", "expected package:NAME/FOLDER"),
    "long package": (f"backbone.weights=package:{LONG}", "not installed"),
    "long weights": (f"backbone.weights={LONG}", "too long"),
    "long path": (f"dataset.path={LONG}", "too long"),
    "long split": (f"dataset.eval_splits=[{LONG}]", "too long"),
    "reader that is a path": ("dataset.reader=../beir", "no dataset loader"),
    "long reader": (f"dataset.reader={LONG}", "no dataset loader"),
    "long suite": (f"transfer={{suite: {LONG}.yaml, rounds: [bm25]}}", "too long"),
    "suite of an unknown user": ("transfer={suite: ~nosuchuser/x.yaml, rounds: [bm25]}", "no such file"),
}


@pytest.mark.parametrize("what", PATHS)
def test_a_name_in_a_recipe_that_cannot_be_is_one_line(tmp_path: Path, what: str) -> None:
    change, message = PATHS[what]
    changes = ["--set", f"dataset.path={collection(tmp_path / 'data')}", "--set", change]

    line = refused("reproduce", "small/beir", *changes, "--store", str(tmp_path / "store"))

    assert re.search(message, line), line
    assert len(line) < 5000


NAMES = ["*", "**/*", "[", "[a-", "../x", "a/b", "x" * 5000, "\udcff", "²", "\n", "\x1b[31m", "@", "small/beir@²",
         "small/beir@", "@1", f"small/beir@{'1' * 5000}", "small/beir@-1", "../x@1"]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ["show", "NAME"], ["search", "NAME", "words"], ["export", "NAME", "to"], ["compare", "NAME", "NAME"],
        ["export-run", "NAME", "--to", "to"], ["queries", "stats", "NAME"], ["queries", "diff", "NAME", "NAME"],
        ["queries", "export", "NAME", "to"], ["evaluate", "bm25", "--suite", "NAME"], ["plan", "NAME"],
        ["evaluate", "bm25", "--suite", "small", "--only", "NAME"], ["queries", "build", "NAME"],
        ["plan", "NAME.yaml"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_of_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    initialise(settings=Named(name="one"))

    for name in NAMES:
        line = refused(*(word.replace("NAME", name) for word in command), "--store", str(store.root))
        assert len(line) < 5000


@pytest.mark.parametrize("folder", [LONG, "/dev/null", "/dev/null/store"])
def test_a_store_that_cannot_be_is_one_line(folder: str) -> None:
    for command in (["show", "abc"], ["verify"], ["gc"], ["queries", "list"]):
        refused(*command, "--store", folder)
