"""Read hard negatives of other programs from plain or gzipped files:

- MS MARCO's `qidpidtriples.train.full.2.tsv`: query, positive and negative in each line, with tabs between;
- `msmarco-hard-negatives.jsonl`: a query in each line, with its top passages by system. Passages are ids
  (https://huggingface.co/datasets/sentence-transformers/msmarco-hard-negatives) or, in the file that BEIR's models are
  trained with (https://sbert.net/datasets/msmarco-hard-negatives.jsonl.gz), ids with a cross-encoder's score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.errors import UserError, quoted
from storage.formats.lines import read_json_lines, read_lines, text_field

ROWS_AT_ONCE = 100_000
FETCH = "`pretrieve fetch msmarco_hard_negatives DIR`, or msmarco_triples, fetches it"
EXPECTED = "expected .tsv (query, positive, negative) or .jsonl (negatives by system), plain or gzipped"

GIVEN = pa.schema([
    pa.field("query_id", pa.string()), pa.field("passage_id", pa.string()), pa.field("system", pa.string()),
    pa.field("score", pa.float64()), pa.field("positive", pa.float64()),
])  # fmt: skip
"""A negative: its query and system (empty in triples), its cross-encoder score, and the lowest score of the query's
positives (NaN where the file has no scores)."""

Row = tuple[str, str, str, float, float]
NONE = float("nan")
LARGEST = 1e30  # score; it must fit single precision


def files(path: Path) -> list[Path]:
    """Return the file to read. Raises UserError where it is missing or its name has no known ending."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; {EXPECTED}; {FETCH}")
    _kind(path)
    return [path]


def read(path: Path) -> Iterator[pa.Table]:
    """Yield the negatives as tables of GIVEN, in the file's order, with one in memory.

    Raises UserError with file and line for a malformed row.
    """
    yield from {"tsv": _of_triples, "jsonl": _of_systems}[_kind(path)](path)


def _kind(path: Path) -> str:
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    kind = {"tsv": "tsv", "jsonl": "jsonl", "json": "jsonl"}.get(ending)
    if kind is None:
        raise UserError(f"{path}: {EXPECTED}")
    return kind


def _of_triples(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file of triples. Arrow parses them: the official file has 397,768,673 rows."""
    from pyarrow import csv

    names = ["query_id", "positive_id", "passage_id"]
    try:
        reader = csv.open_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, block_size=1 << 22),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
        for batch in reader:
            nothing = pa.repeat(NONE, len(batch))
            system = pa.repeat("", len(batch))
            yield pa.table([batch["query_id"], batch["passage_id"], system, nothing, nothing], schema=GIVEN)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(_parse_error(path, str(error))) from None


def _parse_error(path: Path, message: str) -> str:
    """Return a message with the first line that has not three columns, else Arrow's, which lacks the line number."""
    for where, text in read_lines(path):  # which raises for a gzip file that is cut off
        if len(columns := text.split("\t")) != 3:
            expected = "expected query, positive and negative with tabs between"
            return f"{where}: {expected}, found {len(columns)} columns: {text[:60]!r}"
    return f"{path}: {message.splitlines()[0]}"


def _of_systems(path: Path) -> Iterator[pa.Table]:
    rows: list[Row] = []
    for where, line in read_json_lines(path):
        rows += _negatives(line, where)
        if len(rows) >= ROWS_AT_ONCE:
            yield _table(rows)
            rows = []
    yield _table(rows)


def _table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(GIVEN)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, GIVEN, strict=True)], schema=GIVEN)


def _negatives(line: Mapping[str, Any], where: str) -> Iterator[Row]:
    """Yield the negatives of a query, system by system, each in its order."""
    query, positives, systems = line.get("qid"), line.get("pos"), line.get("neg")
    if not _is_id(query) or not isinstance(positives, list) or not isinstance(systems, dict):
        fields = ", ".join(line) or "none"
        raise UserError(f"{where}: expected the fields qid, pos (a list) and neg (lists by system), found {fields}")
    query = text_field({"qid": str(query)}, "qid", where)
    lowest = min((_item(positive, where)[1] for positive in positives), default=NONE)
    for system, items in systems.items():
        text_field({"neg": system}, "neg", where)
        if not isinstance(items, list):
            raise UserError(f"{where}: expected a list of the negatives of {quoted(system)}, found {quoted(items)}")
        for passage, score in (_item(item, where) for item in items):
            yield query, passage, system, score, lowest


def _item(item: Any, where: str) -> tuple[str, float]:
    """Return passage id and score of an item: an id, or an object with both."""
    passage, score = (item.get("pid"), item.get("ce-score")) if isinstance(item, dict) else (item, 0.0)
    if not _is_id(passage) or not isinstance(score, (float, int)) or isinstance(score, bool):
        raise UserError(f"{where}: expected a passage's id, or an object with pid and ce-score, found {quoted(item)}")
    if not abs(score) <= LARGEST:
        raise UserError(f"{where}: expected a finite ce-score, found {quoted(score)}")
    return text_field({"pid": str(passage)}, "pid", where), float(score) if isinstance(item, dict) else NONE


def _is_id(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)
