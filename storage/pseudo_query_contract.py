"""The data contract of exported pseudo-queries: a JSON Schema of a row, and its check of complete tables.

The schema uses the few keywords that `violation` checks on columns: a test compares both on random rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import UserError
from storage.tables import PseudoQueries, Table

REASONS = (
    "", "empty", "round trip", "relevance", "length", "language", "copied", "number", "forbidden word",
    "exact duplicate", "near duplicate",
)  # fmt: skip


class ExportedQueries(Table):
    """`PseudoQueries` with the date of the version's build and the key of its table."""

    schema = pa.schema([
        *PseudoQueries.schema, pa.field("built_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("recipe_key", pa.string(), nullable=False),
    ])  # fmt: skip


def _text(description: str, **rules: Any) -> dict[str, Any]:
    return {"type": "string", **rules, "description": description}


def _number(description: str, kind: str | list[str] = "integer", **rules: Any) -> dict[str, Any]:
    return {"type": kind, **rules, "description": description}


PROPERTIES: dict[str, dict[str, Any]] = {
    "passage_id": _text(
        "the passage that the query was generated for: `DOCUMENT#0`, `#1`, …, or the document's id where documents are "
        "kept whole; a row of `passages`",
        minLength=1,
    ),
    "doc_id": _text("its document", minLength=1),
    "passage_sha256": _text(
        "sha256 of the passage's text: title, blank, text; only the text where it has no title",
        pattern="^[0-9a-f]{64}$",
    ),
    "rank": _number("number of the query within its passage, from 0, over all generators", minimum=0),
    "query": _text("the query; empty where the generator returned nothing"),
    "generator": _text("the generator's name in the recipe", minLength=1),
    "revision": _text(
        "its files, by a hash of them, or its commit on the hub; of imported queries the file's hash", minLength=1
    ),
    "ledger": _text("hash of the generator and of all settings that affect a text; empty where imported"),
    "seed": _number("seed of its random numbers", minimum=0),
    "draw": _number("how often the passage's queries had been resampled when this one was generated", minimum=0),
    "round_trip": _number(
        "rank of the own passage in BM25's list for the query, from 1; 0 where it is not in the list; null: not scored",
        ["integer", "null"], minimum=0,
    ),
    "relevance": _number("a cross-encoder's score of query and passage; null: not scored", ["number", "null"]),
    "kept": {"type": "boolean", "description": "whether the query is used"},
    "reason": _text(
        "why the query is not used: `empty`, or a [filter's reason](#filters); empty where kept", enum=list(REASONS)
    ),
    "built_at": _text("time of the version's build, in UTC; only in exports", format="date-time"),
    "recipe_key": _text(
        "STAGE/KEY of the version's table, a hash of the recipe's settings and inputs; only in exports",
        pattern="^[a-z_]+/.+$",
    ),
}  # fmt: skip
CONTRACT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A pseudo-query",
    "type": "object",
    "properties": PROPERTIES,
    "required": list(PROPERTIES),
    "additionalProperties": False,
    "if": {"properties": {"kept": {"const": True}}},
    "then": {"properties": {"reason": {"const": ""}, "query": {"minLength": 1}}},
    "else": {"properties": {"reason": {"minLength": 1}}},
}
BETWEEN_ROWS = "rows are ordered by passage, and the ranks of a passage rise"


def check_contract(blocks: Iterable[pa.Table], name: str) -> None:
    """Check all rows of a table, in order. Raises UserError that names the first row that breaks the contract."""
    last, first_row = None, 1
    for block in filter(len, blocks):
        if broken := violation(block, last):
            row, words = broken
            values = block.slice(row, 1).to_pylist()[0]
            raise UserError(
                f"{name}: row {first_row + row}, query {values['rank']} of passage {values['passage_id']!r}: {words}; "
                "build or import the version again"
            )
        last, first_row = block.slice(len(block) - 1), first_row + len(block)


def violation(block: pa.Table, last: pa.Table | None = None) -> tuple[int, str] | None:
    """Return the number of the first row that breaks a rule of the contract, and the rule; None where none does.

    `last` is the row before the block.
    """
    broken = [(int(index), words) for bad, words in _rules(block, last) if (index := pc.index(bad, True).as_py()) >= 0]
    return min(broken, default=None)


def _rules(block: pa.Table, last: pa.Table | None) -> Iterator[tuple[Any, str]]:
    """Yield for each rule a mask of the rows that break it."""
    for name in block.column_names:
        for bad, words in _rules_of(block[name], PROPERTIES[name]):
            yield pc.fill_null(bad, False), f"{name}: {words}"
    not_empty = pc.not_equal(block["reason"], "")
    yield pc.equal(block["kept"], not_empty), "reason: expected none where the query is kept, and only there"
    yield pc.and_(block["kept"], pc.equal(block["query"], "")), "query: expected a text where it is kept"
    rows = block.select(["passage_id", "rank"])
    rows = rows if last is None else pa.concat_tables([last.select(["passage_id", "rank"]), rows])
    same = pc.equal(rows["passage_id"].combine_chunks()[1:], rows["passage_id"].combine_chunks()[:-1])
    rises = pc.greater(rows["rank"].combine_chunks()[1:], rows["rank"].combine_chunks()[:-1])
    bad = pc.and_(same, pc.invert(rises))
    yield bad if last is not None else pa.concat_arrays([pa.array([False]), bad])[: len(block)], BETWEEN_ROWS


def _rules_of(column: pa.ChunkedArray, rules: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the broken rules of a column, as JSON Schema means them."""
    if "null" not in rules["type"]:
        yield pc.is_null(column), "expected a value, found null"
    if "minimum" in rules:
        yield pc.less(column, rules["minimum"]), f"expected at least {rules['minimum']}"
    if "number" in rules["type"]:
        yield pc.invert(pc.is_finite(column)), "expected a finite number"
    if "minLength" in rules:
        yield pc.less(pc.utf8_length(column), rules["minLength"]), "expected a text, found an empty one"
    if "pattern" in rules:
        yield pc.invert(pc.match_substring_regex(column, rules["pattern"])), f"expected a text like {rules['pattern']}"
    if "enum" in rules:
        known = ", ".join(repr(value) for value in rules["enum"])
        yield pc.invert(pc.is_in(column, pa.array(rules["enum"], column.type))), f"expected one of {known}"


def markdown_table() -> str:
    """Return the columns with types, rules and meanings, as the documentation and the card of an export show them."""
    lines = ["| column | type | rule | meaning |", "|---|---|---|---|"]
    for name, rules in PROPERTIES.items():
        kind = str(ExportedQueries.schema.field(name).type).replace("[us, tz=UTC]", "")
        kind += ", null" if "null" in rules["type"] else ""
        lines.append(f"| {name} | {kind} | {_rule_in_words(rules)} | {rules['description']} |")
    return "\n".join(lines)


def _rule_in_words(rules: dict[str, Any]) -> str:
    if "enum" in rules:
        return "a known reason"
    if "pattern" in rules:
        return f"`{rules['pattern']}`"
    return f"≥ {rules['minimum']}" if "minimum" in rules else "not empty" if "minLength" in rules else ""
