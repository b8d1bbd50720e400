"""The data contract: its JSON Schema and its check of columns agree, and the documentation shows it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

from storage.errors import UserError
from storage.pseudo_query_contract import (
    BETWEEN_ROWS,
    CONTRACT,
    PROPERTIES,
    REASONS,
    ExportedQueries,
    check_contract,
    markdown_table,
    violation,
)
from tasks.pseudo_queries.dropped_counts import OUTCOMES
from tests.tasks.corpora import pseudo_query
from tests.test_readme import ROOT

NEW = {"built_at": datetime(2026, 1, 1, tzinfo=UTC), "recipe_key": "generate_queries/ab12"}
WRONG: dict[str, list[Any]] = {
    "passage_id": ["", None], "doc_id": ["", None], "passage_sha256": ["ab", "G" * 64], "rank": [-1, None],
    "query": ["", None], "generator": [""], "revision": [""], "ledger": [None], "seed": [-5], "draw": [-1],
    "round_trip": [-1, None, 0, 7], "relevance": [None, -2.5], "kept": [False, None],
    "reason": ["bored", "relevance", None],
    "built_at": [None], "recipe_key": ["", "no stage"],
}  # fmt: skip
LOOSE = pa.schema([field.with_nullable(True) for field in ExportedQueries.schema])


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([row | NEW | {k: row[k] for k in NEW if k in row} for row in rows], schema=LOOSE)


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"built_at": row["built_at"] and row["built_at"].isoformat()}


def test_columns_are_checked_as_json_schema_means_them() -> None:
    validator, draw, results = jsonschema.Draft202012Validator(CONTRACT), random.Random(1), set()
    for name, values in WRONG.items():
        for value in values:
            row = pseudo_query("d#0", 0, "a query") | NEW | {name: value}
            if draw.random() < 0.3 and name not in ("kept", "reason"):
                row |= {"kept": False, "reason": "near duplicate"}
            is_valid = validator.is_valid(as_json(row))
            assert (violation(table(row)) is None) == is_valid, (name, value)
            results.add(is_valid)
    assert results == {True, False}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(as_json(pseudo_query("d#0", 0, "q") | NEW) | {"other": 1})


def test_the_first_row_that_breaks_the_contract_is_named() -> None:
    first = table(pseudo_query("a#0", 0, "q"), pseudo_query("a#0", 1, ""))
    second = table(pseudo_query("b#0", 0, "q"), pseudo_query("b#0", 1, "q", round_trip=-2, seed=-1))

    check_contract([first], "queries/x")
    with pytest.raises(UserError, match=r"queries/x: row 4, query 1 of passage 'b#0': round_trip: expected at least 0"):
        check_contract([first, second], "queries/x")
    with pytest.raises(UserError, match=f"row 3.*{BETWEEN_ROWS}"):
        check_contract([first, first.slice(1)], "queries/x")
    with pytest.raises(UserError, match=f"row 2.*{BETWEEN_ROWS}"):
        check_contract([table(pseudo_query("a", 1, "q"), pseudo_query("a", 1, "r"))], "queries/x")
    check_contract([first.slice(0, 0)], "queries/x")


def test_the_contract_is_complete_and_documented() -> None:
    assert list(PROPERTIES) == ExportedQueries.schema.names
    assert set(REASONS) == set(OUTCOMES)
    assert markdown_table() in (ROOT / "docs" / "queries.md").read_text(), markdown_table()
    for name in ("round_trip", "relevance"):
        assert ("null" in PROPERTIES[name]["type"]) == ExportedQueries.schema.field(name).nullable
