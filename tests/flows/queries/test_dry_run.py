"""`queries build --dry-run` counts what the build then generates, and neither needs a Prefect server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import PseudoQueries
from tests.console import command
from tests.flows.queries.test_commands import DOCUMENTS, NAME, changes, collection, model, write
from tests.flows.test_json_output import has_documented_fields

__all__ = ["changes", "collection", "model"]
ADDED = {
    "new": "bread and stone",
    "d0": "another text",
    **{n: t for n, t in DOCUMENTS.items() if n not in ("d0", "d3")},
}


@pytest.mark.slow
def test_a_dry_run_counts_what_the_build_generates(
    changes: list[str], collection: Path, store: Store, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("flows.queries.build.as_flow", pytest.fail)  # no server is started
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    options = [*(part for change in changes for part in ("--set", change)), "--store", store.root]

    def counted() -> dict[str, Any]:
        ended = command(capsys, "queries", "build", NAME, *options, "--dry-run", "--json")
        assert ended.code == 0, ended.err
        value: dict[str, Any] = json.loads(ended.out)
        has_documented_fields("queries build RECIPE --dry-run", value)
        return value

    first = counted()
    assert first["previous"] is None
    assert first["passages"] == {"same": 0, "moved": 0, "changed": 0, "new": len(DOCUMENTS), "removed": 0}
    [generator] = first["generators"]
    assert (generator["cached"], generator["to_generate"], generator["passages"]) == (0, 16, 8)
    assert generator["rate_from"].startswith("measured now")
    assert generator["seconds"] > 0
    assert not list((store.root / "generate_queries").glob("*"))
    assert command(capsys, "queries", "build", NAME, *options).code == 0

    write(collection, ADDED)
    second = counted()
    assert second["previous"] == f"{NAME}@1"
    assert second["passages"] == {"same": 6, "moved": 0, "changed": 1, "new": 1, "removed": 1}
    [generator] = second["generators"]
    assert (generator["cached"], generator["to_generate"], generator["passages"]) == (12, 4, 2)
    assert generator["rate_from"].startswith("as generate_queries/")
    assert command(capsys, "queries", "build", NAME, *options).code == 0
    written = [json.loads(file.read_text()) for file in store.root.glob("generate_queries/*/logs/written.json")]
    assert sorted(count["made"] for count in written) == [4, 16]
    more = [*options, "--set", "queries.generate.queries_per_passage=3", "--dry-run"]
    ended = command(capsys, "queries", "build", NAME, *more)
    assert "8 queries to generate for 8 passages, 16 are cached; about " in ended.out
    assert {row["passage_id"] for row in read_rows_of_newest(store)} == {f"{name}#0" for name in ADDED}


@pytest.mark.slow
def test_the_queries_of_a_csv_file_are_those_of_the_same_documents_in_beirs_layout(
    changes: list[str], store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "documents.csv"
    file.write_text("".join(f"{name},{text}\n" for name, text in {"id": "text", **DOCUMENTS}.items()))

    def built(*more: str) -> list[tuple[str, str]]:
        options = [part for change in (*changes, *more) for part in ("--set", change)]
        ended = command(capsys, "queries", "build", NAME, *options, "--store", store.root)
        assert ended.code == 0, ended.err
        return [(row["passage_id"], row["query"]) for row in read_rows_of_newest(store)]

    expected = built()
    assert built("dataset.reader=texts", f"dataset.path={file}") == expected
    assert {passage for passage, _ in expected} == {f"{name}#0" for name in DOCUMENTS}
    refused = command(capsys, "queries", "build", NAME, "--set", f"dataset.path={file}", "--store", store.root)
    assert (
        f"{file}: expected a folder in BEIR's layout; for a file of texts add --set dataset.reader=texts" in refused.err
    )


def read_rows_of_newest(store: Store) -> list[dict[str, Any]]:
    newest = max((store.root / "generate_queries").glob("*"), key=lambda folder: folder.stat().st_mtime)
    return list(read_rows(Artifact("generate_queries", newest.name, newest), PseudoQueries))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--json"], "--json: expected together with --dry-run"),
        (["--dry-run", "--replace", "all"], "without --replace"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], words: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = command(capsys, "queries", "build", "quickstart", *options, "--store", store.root)

    assert ended.code == 2
    assert words in ended.err
