"""`pretrieve queries export`: write a version of a corpus for other tools, in a folder that appears complete."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from flows.export.export import must_be_free, new_folder
from flows.queries.dataset_card import card
from flows.queries.formats import LINES, Row, WithQueries
from storage.artifact import Artifact, Manifest
from storage.errors import UserError
from storage.generation_cache.cache import FOLDER as LEDGERS
from storage.pseudo_query_contract import CONTRACT, ExportedQueries, check_contract
from storage.rows import num_rows, parts, read_blocks, read_rows, table_blocks, write_blocks
from storage.store.store import Store
from storage.tables import Passages, PseudoQueries
from tasks.runtime.progress import progress

FORMATS = (*LINES, "datasets")
TABLES = ("datasets", "partitioned")
PROVENANCE, CONTRACT_FILE = "provenance.json", "contract.json"
WRITTEN_BY = ("generator", "revision", "ledger")


class ExportedCorpus(Protocol):
    """The corpus to export: `flows.queries.versions.Version`."""

    @property
    def name(self) -> str: ...
    @property
    def at(self) -> str: ...
    @property
    def queries(self) -> Artifact[PseudoQueries]: ...
    @property
    def passages(self) -> Artifact[Passages]: ...


def export_queries(version: ExportedCorpus, format: str, folder: Path, dropped: bool) -> dict[str, Any]:  # noqa: A002
    """Write the passages and their kept queries to a new or empty folder; return the provenance.

    `dropped` also writes queries that filters dropped; empty queries are only written to `datasets`, which then has
    the complete table.
    """
    if format not in FORMATS:
        raise UserError(f"{format}: there is no such format; expected {', '.join(FORMATS)}")
    must_be_free(folder)
    checked(version)
    origin = provenance(version, format, dropped)
    with new_folder(folder) as out:
        if format == "datasets":
            _tables(out, version, dropped)
            (out / "README.md").write_text(card(origin), encoding="utf-8")
            (out / CONTRACT_FILE).write_text(
                json.dumps(CONTRACT, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        else:
            total = num_rows(version.passages.path)
            passages = progress(with_queries(version, dropped), what="exporting", unit="passages", total=total)
            LINES[format](out, passages)
        (out / PROVENANCE).write_text(json.dumps(origin, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return origin


def checked(version: ExportedCorpus) -> None:
    """Check the files of a version, then its rows by the data contract. Raises UserError for what breaks it."""
    for artifact in (version.queries, version.passages):
        Store(artifact.path.parent.parent).check(artifact)
    files = parts(version.queries.path)
    blocks = (block for path in files for block in rows_of(path, version, dropped=True))
    check_contract(blocks, version.queries.reference)


def rows_of(path: Path, version: ExportedCorpus, dropped: bool) -> Iterator[pa.Table]:
    """Yield the rows of one of a version's files that tables have, with the columns of an export."""
    values = {"built_at": datetime.fromisoformat(version.at), "recipe_key": version.queries.reference}
    for block in read_blocks(path, PseudoQueries):
        rows = _wanted(block, "datasets", dropped)
        for name, value in values.items():
            kind = ExportedQueries.schema.field(name).type
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, kind), len(rows)))
        yield rows.cast(ExportedQueries.schema)


def with_queries(version: ExportedCorpus, dropped: bool = False) -> WithQueries:
    """Yield every passage with its kept queries; with `dropped`, also with the others that are not empty."""
    rows = read_rows(version.queries, PseudoQueries)
    wanted = (row for row in rows if row["kept"] or (dropped and row["query"]))
    groups = groupby(wanted, key=itemgetter("passage_id"))
    group = next(groups, None)
    for passage in read_rows(version.passages, Passages):
        queries: list[Row] = []
        if group is not None and group[0] == passage["passage_id"]:
            queries = list(group[1])
            group = next(groups, None)
        yield passage, queries
    if group is not None:
        raise ValueError(f"{group[0]}: the queries are of other passages than {version.passages.reference}")


def provenance(version: ExportedCorpus, format: str, dropped: bool) -> dict[str, Any]:  # noqa: A002
    """Return version, counts, generators with their numbers of queries, and the lineage with settings."""
    store = Store(version.queries.path.parent.parent)
    by_generator: Counter[tuple[str, ...]] = Counter()
    reasons: Counter[str] = Counter()
    for block in table_blocks(version.queries.path, PseudoQueries, [*WRITTEN_BY, "kept", "reason"]):
        reasons.update({row["values"]: row["counts"] for row in pc.value_counts(block["reason"]).to_pylist()})
        counted = _wanted(block, format, dropped).group_by(list(WRITTEN_BY)).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            by_generator[tuple(row[name] for name in WRITTEN_BY)] += row["count_all"]
    return {
        "corpus": version.name, "built": version.at, "format": format, "dropped": dropped,
        "queries": version.queries.reference, "passages": version.passages.reference,
        "counts": {
            "passages": num_rows(version.passages.path), "queries": sum(by_generator.values()),
            "kept": reasons.pop("", 0),
            **{f"dropped: {reason}": count for reason, count in sorted(reasons.items())},
        },
        "written_by": [
            dict(zip(WRITTEN_BY, generator, strict=True)) | {"queries": count}
            for generator, count in sorted(by_generator.items())
        ],
        "ledgers": {key: _made_by(store, key) for key in sorted({key for _, _, key in by_generator if key})},
        "made_of": dict(_made_of(version.queries.reference, store)),
    }  # fmt: skip


def _wanted(block: pa.Table, format: str, dropped: bool) -> pa.Table:  # noqa: A002
    """Return the rows to write; empty queries are only written to tables."""
    if dropped:
        return block if format in TABLES else block.filter(pc.not_equal(block["reason"], "empty"))
    return block.filter(block["kept"])


def _made_by(store: Store, ledger: str) -> Any:
    """Return the settings of a generation cache; None where the cache was deleted."""
    file = store.root / LEDGERS / ledger / "made_by.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _made_of(reference: str, store: Store) -> Iterator[tuple[str, Any]]:
    """Yield version, settings, inputs and hash of an artifact and of all that it was built from."""
    waiting, seen = [reference], set()
    while waiting:
        seen.add(ancestor := waiting.pop())
        manifest: Manifest | None = store.manifest(*ancestor.split("/", 1))
        if manifest:
            built = {"version": manifest.version, "settings": manifest.settings, "inputs": manifest.inputs}
            yield ancestor, built | {"hash": manifest.hash}
            waiting += [
                input_reference
                for input_reference in manifest.references()
                if input_reference not in seen and input_reference not in waiting
            ]


def _tables(out: Path, version: ExportedCorpus, dropped: bool) -> None:
    """Write queries/*.parquet and passages/*.parquet."""
    paths = parts(version.queries.path)
    for path in progress(paths, what="exporting", unit="files", total=len(paths)):
        write_blocks(out / "queries", ExportedQueries, rows_of(path, version, dropped), path.stem)
    (out / "passages").mkdir()
    for path in parts(version.passages.path):
        shutil.copyfile(path, out / "passages" / path.name)
