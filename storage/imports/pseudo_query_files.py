"""Pseudo-queries in files that other tools wrote, plain or gzipped:

- docTTTTTquery's JSON lines: `id` of a passage and its `predicted_queries`, a line a passage;
- a folder in BEIR's layout of generated queries, as GPL has it: corpus.jsonl is not read, PREFIX-queries.jsonl and
  PREFIX-qrels/train.tsv are, which name the same queries in the same order;
- lines of passage id, tab, query;
- Parquet files of our own table, also in a folder: scores and what was dropped stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.datasets import beir
from storage.errors import UserError
from storage.formats.ids import checked_id
from storage.formats.lines import read_json_lines, read_lines, text_field
from storage.tables import PseudoQueries

QUERIES = "-queries.jsonl"
LINES, TABLE, PARQUET = ("jsonl", "json"), ("tsv", "txt"), ("parquet",)
EXPECTED = "expected .jsonl (docTTTTTquery), .tsv (passage id, tab, query), .parquet (our table) or a folder of BEIR's"
OURS = (
    "passage_id", "passage_sha256", "rank", "query", "round_trip", "relevance", "reason", "generator", "revision",
    "ledger", "seed", "draw",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """A query as a file has it."""

    where: str
    passage_id: str
    query: str
    begins: bool = False
    """Whether all of its passage's queries follow, from this one on."""
    is_query: bool = True
    """Or else says that its passage has none."""
    passage_sha256: str = ""
    """Of the text that it was written for, where the file says it."""
    round_trip: int | None = None
    relevance: float | None = None
    reason: str = ""
    generator: str = ""
    """Who wrote it, where the file says it, and with what."""
    revision: str = ""
    ledger: str = ""
    seed: int = 0
    draw: int = 0


def files(path: Path) -> list[Path]:
    """The files that are read, in order. Raises UserError where there are none, or it is not clear which."""
    if path.is_file():
        return [path] if _kind(path) else _refused(path, EXPECTED)
    if not path.is_dir():
        return _refused(path, "no such file or folder")
    if prefixes := sorted(each.name.partition(QUERIES)[0] for each in path.glob(f"*{QUERIES}*")):
        if len(prefixes) > 1:
            return _refused(path, f"expected one {QUERIES[1:]} with a prefix, found those of {', '.join(prefixes)}")
        return beir.files(path, "queries", f"{prefixes[0]}-train")
    inner = path / "queries" if (path / "queries").is_dir() else path  # of a folder that `export` wrote
    for kind in (PARQUET, LINES):
        if found := sorted(each for each in inner.iterdir() if _kind(each) == kind and each.name != "provenance.json"):
            return found
    return _refused(path, EXPECTED)


def read(path: Path) -> Iterator[Given]:
    """The queries, in the files' order, one in memory. Raises UserError at a row that is broken, with its place."""
    found = files(path)
    if found[0].name.partition(QUERIES)[1]:
        yield from _of_beir(*found)
        return
    for file in found:
        yield from {LINES: _of_lines, TABLE: _of_columns, PARQUET: _of_table}[_kind(file)](file)


def _kind(file: Path) -> tuple[str, ...]:
    ending = file.name.removesuffix(".gz").rpartition(".")[2]
    return next((kind for kind in (LINES, TABLE, PARQUET) if ending in kind), ())


def _refused(path: Path, why: str) -> list[Path]:
    raise UserError(f"{path}: {why}")


def _of_lines(file: Path) -> Iterator[Given]:
    for where, row in read_json_lines(file):
        passage_id = checked_id(text_field(row, "id", where), where)
        queries = row.get("predicted_queries")
        if not isinstance(queries, list):
            fields = ", ".join(sorted(row))
            raise UserError(f"{where}: expected a list in the field 'predicted_queries'; the fields are {fields}")
        if not queries:
            yield Given(where, passage_id, "", begins=True, is_query=False)
        for number, query in enumerate(queries):
            text = text_field({"predicted_queries": query}, "predicted_queries", where)
            yield Given(where, passage_id, text.strip(), begins=not number)


def _of_columns(file: Path) -> Iterator[Given]:
    for where, text in read_lines(file):
        columns = text.split("\t")
        if len(columns) != 2:
            raise UserError(f"{where}: expected passage id, tab, query; found {len(columns)} columns: {text[:60]!r}")
        yield Given(where, checked_id(columns[0], where), columns[1].strip())


def _of_beir(queries: Path, qrels: Path) -> Iterator[Given]:
    rows, query_id, text, there = read_json_lines(queries), None, "", f"{queries} line 1"
    for where, judged in beir.judgements(qrels):
        if judged["query_id"] != query_id:
            there, row = next(rows, (there, {"_id": "the end of the file", "text": ""}))
            query_id, text = text_field(row, "_id", there), text_field(row, "text", there).strip()
        if judged["query_id"] != query_id:
            raise UserError(
                f"{where}: expected the passage of {query_id} ({there}), found that of {judged['query_id']}; both "
                "files must name the same queries in the same order, as BEIR and GPL write them"
            )
        yield Given(where, judged["doc_id"], text)
    if left := next(rows, None):
        raise UserError(f"{left[0]}: {qrels} does not name this query's passage")


def _of_table(file: Path) -> Iterator[Given]:
    before: tuple[str, int] = ("", -1)
    for number, row in enumerate(_table_rows(file), 1):
        where, same = f"{file} row {number}", row["passage_id"] == before[0]
        if same and row["rank"] <= before[1]:
            raise UserError(f"{where}: expected ranks that rise within passage {before[0]}, found {row['rank']} again")
        if row["relevance"] is not None and not math.isfinite(row["relevance"]):
            raise UserError(f"{where}: expected a finite number as relevance, or null, found {row['relevance']}")
        before = row["passage_id"], row["rank"]
        del row["rank"]
        yield Given(where, begins=not same, **row | {"reason": row["reason"] if row["query"] else ""})


def _table_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            if missing := [name for name in OURS if name not in table.schema_arrow.names]:
                _refused(file, f"expected the columns of PseudoQueries; {', '.join(missing)} is missing")
            wanted = pa.schema([PseudoQueries.schema.field(name) for name in OURS])
            for batch in table.iter_batches(batch_size=10_000, columns=list(OURS)):
                yield from pa.Table.from_batches([batch]).select(list(OURS)).cast(wanted).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{file}: not a Parquet file of PseudoQueries ({str(error).partition(chr(10))[0]})") from None
