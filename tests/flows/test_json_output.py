"""`--json` of the listing commands: one JSON value on standard output, with what the tables show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.store.store import Store
from tests.console import command
from tests.flows.queries.test_versions import noted
from tests.flows.test_search import built
from tests.test_readme import ROOT

__all__ = ["built"]

PAGE = (ROOT / "docs" / "json.md").read_text()


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    """Run a command with --json and return its value, whose fields are those that docs/json.md lists."""
    ended = command(capsys, *arguments, "--json")
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    has_documented_fields(" ".join(map(str, arguments[: 1 + (arguments[0] == "queries")])), value)
    return value


def has_documented_fields(name: str, value: Any) -> None:
    """Assert that an object, or each object of a list, has the fields of a command's table in docs/json.md."""
    section = re.search(rf"^## `pretrieve {name}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, name
    rows = re.findall(r"^\| ([^|]+) \|", section[1], re.MULTILINE)[1:]
    fields = {field for row in rows for field in row.split(", ")}
    for row in value if isinstance(value, list) else [value]:
        assert set(row) == fields - ({"gpu"} if name == "plan" else set())


def test_versions(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    queries = noted(2, store)

    [version] = json_of(capsys, "queries", "list", "--store", store.root)

    assert version["version"] == "corpus@1"
    assert version["state"] == "kept"
    assert version["rows"] == 2
    assert version["bytes"] > 0
    assert version["key"] == queries.reference
    assert (version["generators"], version["filter"], version["source"]) == ([], None, [])


def test_an_artifact_and_its_lineage(
    built: dict[str, Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = json_of(capsys, "show", built["vectors"].key, "--store", store.root)

    assert shown["key"] == built["vectors"].key
    assert shown["folder"] == str(built["vectors"].path)
    assert set(shown["lineage"]) == {built[name].reference for name in ("vectors", "passages", "retriever")}


def test_search_results(built: dict[str, Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = json_of(capsys, "search", built["exact"].key, "river", "--top", "2", "--store", store.root)

    assert (first["rank"], second["rank"]) == (1, 2)
    assert list(first["scores"]) == ["sum", "dense", "late", "lexical"]
    assert json_of(capsys, "search", built["bm25"].key, "zebra", "--store", store.root) == []


def test_garbage(built: dict[str, Artifact[Any]], store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json_of(capsys, "gc", "--older-than", "0s", "--store", store.root)

    assert set(listed["unneeded"]) == {str(artifact.path) for artifact in built.values()}
    assert {"what", "size", "kept_for"} == set(listed["rows"][0])
    refused = command(capsys, "gc", "--json", "--delete", "--store", store.root)
    assert refused.code == 2
    assert built["bm25"].path.exists()


def test_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = json_of(capsys, "plan", "quickstart", "--store", tmp_path)

    texts = {"stage", "round", "key", "state", "tokens", "flops", "disk", "hours"}
    assert texts | {"num_tokens", "num_flops", "disk_bytes", "num_hours"} == set(plan["stages"][0])
    assert plan["stages"][-1]["stage"] == "report"


def test_the_checks_of_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = command(capsys, "doctor", "--json", "--store", tmp_path / "store")

    results = json.loads(ended.out)
    has_documented_fields("doctor", results)
    assert [result["what"] for result in results][:2] == ["Python", "packages"]
    assert ended.code == (0 if all(result["works"] for result in results) else 2)
