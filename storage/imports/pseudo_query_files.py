"""Read pseudo-queries of other programs from plain or gzipped files:

- docTTTTTquery's JSON lines: `id` of a passage and its `predicted_queries`, one passage a line;
- a folder of generated queries in BEIR's layout, as of GPL: PREFIX-queries.jsonl and PREFIX-qrels/train.tsv, which
  name the same queries in the same order (corpus.jsonl is not read);
- lines of passage id, tab, query;
- Parquet files of the table PseudoQueries, also in a folder: scores and dropped rows are kept.
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
class ImportedQuery:
    """A query in a file."""

    where: str
    passage_id: str
    query: str
    begins: bool = False
    """Whether it is the first of all queries of its passage."""
    is_query: bool = True
    """False for a row that says that its passage has no queries."""
    passage_sha256: str = ""
    """The hash of its passage's text, where the file has it."""
    round_trip: int | None = None
    relevance: float | None = None
    reason: str = ""
    generator: str = ""
    """The generator, with revision, cache and seed below, where the file has them."""
    revision: str = ""
    ledger: str = ""
    seed: int = 0
    draw: int = 0


def files(path: Path) -> list[Path]:
    """Return the files to read, in order. Raises UserError where there are none, or several kinds."""
    if path.is_file():
        return [path] if _kind(path) else _refused(path, EXPECTED)
    if not path.is_dir():
        return _refused(path, "no such file or folder")
    if prefixes := sorted({file.name.partition(QUERIES)[0] for file in path.glob(f"*{QUERIES}*")}):
        if len(prefixes) > 1:
            return _refused(path, f"expected one {QUERIES[1:]} with a prefix, found those of {', '.join(prefixes)}")
        return beir.files(path, "queries", f"{prefixes[0]}-train")
    inner = path / "queries" if (path / "queries").is_dir() else path  # of a folder that `export` wrote
    given = {file for file in inner.iterdir() if file.name != "provenance.json"}
    given -= {file.with_name(f"{file.name}.gz") for file in given}  # of two, the plain one is read
    for kind in (PARQUET, LINES):
        if paths := sorted(file for file in given if _kind(file) == kind):
            return paths
    return _refused(path, EXPECTED)


def read(path: Path) -> Iterator[ImportedQuery]:
    """Yield the queries in the files' order, one in memory. Raises UserError with file and row for a malformed row."""
    paths = files(path)
    if paths[0].name.partition(QUERIES)[1]:
        yield from _of_beir(*paths)
        return
    for file in paths:
        yield from {LINES: _of_lines, TABLE: _of_columns, PARQUET: _of_table}[_kind(file)](file)


def _kind(file: Path) -> tuple[str, ...]:
    ending = file.name.removesuffix(".gz").rpartition(".")[2]
    return next((kind for kind in (LINES, TABLE, PARQUET) if ending in kind), ())


def _refused(path: Path, why: str) -> list[Path]:
    raise UserError(f"{path}: {why}")


def _of_lines(file: Path) -> Iterator[ImportedQuery]:
    for where, row in read_json_lines(file):
        passage_id = checked_id(text_field(row, "id", where), where)
        queries = row.get("predicted_queries")
        if not isinstance(queries, list):
            fields = ", ".join(sorted(row))
            raise UserError(f"{where}: expected a list in the field 'predicted_queries'; the fields are {fields}")
        if not queries:
            yield ImportedQuery(where, passage_id, "", begins=True, is_query=False)
        for number, query in enumerate(queries):
            text = text_field({"predicted_queries": query}, "predicted_queries", where)
            yield ImportedQuery(where, passage_id, text.strip(), begins=not number)


def _of_columns(file: Path) -> Iterator[ImportedQuery]:
    for where, text in read_lines(file):
        columns = text.split("\t")
        if len(columns) != 2:
            raise UserError(f"{where}: expected passage id, tab, query; found {len(columns)} columns: {text[:60]!r}")
        yield ImportedQuery(where, checked_id(columns[0], where), columns[1].strip())


def _of_beir(queries: Path, qrels: Path) -> Iterator[ImportedQuery]:
    rows, query_id, text, query_line = read_json_lines(queries), None, "", f"{queries} line 1"
    for where, judged in beir.judgements(qrels):
        if judged["query_id"] != query_id:
            query_line, row = next(rows, (query_line, {"_id": "the end of the file", "text": ""}))
            query_id, text = text_field(row, "_id", query_line), text_field(row, "text", query_line).strip()
        if judged["query_id"] != query_id:
            raise UserError(
                f"{where}: expected the passage of {query_id} ({query_line}), found that of {judged['query_id']}; both "
                "files must name the same queries in the same order, as BEIR and GPL write them"
            )
        yield ImportedQuery(where, judged["doc_id"], text)
    if extra := next(rows, None):
        raise UserError(f"{extra[0]}: {qrels} does not name this query's passage")


def _of_table(file: Path) -> Iterator[ImportedQuery]:
    last: tuple[str, int] = ("", -1)
    for number, row in enumerate(_table_rows(file), 1):
        where, same = f"{file} row {number}", row["passage_id"] == last[0]
        if same and row["rank"] <= last[1]:
            raise UserError(f"{where}: expected ranks that rise within passage {last[0]}, found {row['rank']} again")
        if row["relevance"] is not None and not math.isfinite(row["relevance"]):
            raise UserError(f"{where}: expected a finite number as relevance, or null, found {row['relevance']}")
        last = row["passage_id"], row["rank"]
        del row["rank"]
        yield ImportedQuery(where, begins=not same, **row | {"reason": row["reason"] if row["query"] else ""})


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
