"""Export versions of a corpus into one folder, partitioned by version and generator, as lakes and warehouses read it.

    DIR/queries/version=NAME@N/generator=GENERATOR/part-00000.parquet    rows of `ExportedQueries` without `generator`
    DIR/passages/version=NAME@N/part-00000.parquet
    DIR/provenance/NAME@N.json      is written last: a version is complete when it is there
    DIR/contract.json               JSON Schema of a row of queries
    DIR/.unfinished                 what an export is writing, or what a killed one has left

Values in names are encoded as in URLs, so that / is %2F, which is how Hive, Spark, DuckDB and Arrow read them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.export.export import impossible_paths_in_words
from flows.queries.export import ExportedCorpus, checked, provenance, rows_of
from storage.errors import UserError
from storage.files import flush, write_atomically, writing_folder
from storage.pseudo_query_contract import CONTRACT
from storage.rows import parts

PARTITIONED = "partitioned"
UNFINISHED = ".unfinished"  # the folder in which partitions are written


def encoded(value: str) -> str:
    """Return a value as a part of a path."""
    return quote(value, safe="@ ")


def provenance_file(version: str) -> str:
    """Return the relative path of the file that says that a version is complete."""
    return f"provenance/{encoded(version)}.json"


def partitions(version: str) -> tuple[str, str]:
    """Return the relative paths of the folders of a version's passages and queries."""
    name = f"version={encoded(version)}"
    return f"passages/{name}", f"queries/{name}"


def export_partition(version: ExportedCorpus, folder: Path, dropped: bool) -> dict[str, Any]:
    """Add a version to a folder of versions, and return its provenance.

    Raises UserError where the folder has the version already, or files of something else.
    """
    checked(version)
    with impossible_paths_in_words(folder):
        _must_take(version.name, folder)
    origin = provenance(version, PARTITIONED, dropped)
    passages, queries = partitions(version.name)
    with impossible_paths_in_words(folder):
        with _replacing(folder, passages) as out:
            for path in parts(version.passages.path):
                shutil.copyfile(path, out / path.name)
        with _replacing(folder, queries) as out:
            for path in parts(version.queries.path):
                _write_by_generator(out, path.stem, rows_of(path, version, dropped))
        write_atomically(folder / "contract.json", json.dumps(CONTRACT, indent=1, ensure_ascii=False) + "\n")
        file = folder / provenance_file(version.name)
        write_atomically(file, json.dumps(origin, indent=1, ensure_ascii=False) + "\n")
    return origin


def _must_take(version: str, folder: Path) -> None:
    known = {"queries", "passages", "provenance", "contract.json"}
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    others = sorted(name for name in names if name not in known and not name.startswith("."))
    if others:
        raise UserError(f"{folder}: expected a folder of exported versions, or a new one; it has {others[0]}")
    if (folder / provenance_file(version)).exists():
        raise UserError(f"{folder}: it has {version} already; delete {provenance_file(version)} to export it again")


@contextlib.contextmanager
def _replacing(folder: Path, name: str) -> Iterator[Path]:
    """Yield a folder that replaces what an interrupted export has left, once it is complete.

    It is written where no pattern for the files of `queries` or `passages` matches.
    """
    final, complete = folder / name, folder / UNFINISHED / name
    for leftover in (final, complete):
        shutil.rmtree(leftover, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    with writing_folder(complete) as temporary:
        yield temporary
    os.rename(complete, final)
    flush(final.parent)


def _write_by_generator(out: Path, name: str, blocks: Iterable[pa.Table]) -> None:
    """Write rows into the folders of their generators."""
    with contextlib.ExitStack() as files:
        writers: dict[str, pq.ParquetWriter] = {}
        for block in blocks:
            for generator in pc.unique(block["generator"]).to_pylist():
                rows = block.filter(pc.equal(block["generator"], generator)).drop_columns("generator")
                if generator not in writers:
                    folder = out / f"generator={encoded(generator)}"
                    folder.mkdir(exist_ok=True)
                    writer = pq.ParquetWriter(folder / f"{name}.parquet", rows.schema)
                    writers[generator] = files.enter_context(writer)
                writers[generator].write_table(rows)
