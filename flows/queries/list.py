"""`pretrieve queries list`: the versions that a store has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from flows.queries.versions import Version, all_versions, damaged_versions
from flows.terminal import Terminal, say_json
from storage.artifact import Manifest
from storage.errors import one_line
from storage.files import bytes_below
from storage.store.lookup import lineage, lookup
from storage.store.store import Store
from tasks.runtime.formatting import in_units

WIDTH = 180  # columns that the table needs to be read


def list_versions(folder: Path, as_json: bool = False) -> None:
    """Print every version of every recipe, the oldest first, as a table or as JSON."""
    store = Store.open(folder)
    for line in damaged_versions(store):
        print(one_line(f"pretrieve: {line}; `pretrieve verify --aside` quarantines it"), file=sys.stderr)
    versions = [describe(version, store) for version in all_versions(store)]
    if as_json:
        say_json(versions)
    elif versions:
        console = Terminal()
        console.width = max(console.width, WIDTH)
        console.print(_table(versions, str(store.root)))
    else:
        Terminal().print(f"{store.root}: no versions yet; `pretrieve queries build RECIPE` builds one")


def describe(version: Version, store: Store) -> dict[str, Any]:
    """Return a version's name, date, state, sizes, generators, filter, collection and key.

    The state is kept, damaged or deleted; of a version that is not kept the rest is not known.
    """
    manifest = store.manifest(version.queries.stage, version.queries.key)
    state = "kept" if manifest else "damaged" if version.queries.path.exists() else "deleted"
    built_from = [inner for name in lineage(version.queries.reference, store) if (inner := lookup(name, store))]
    return {
        "version": version.name, "built": version.at, "state": state,
        "rows": manifest.rows if manifest else None,
        "bytes": bytes_below(version.queries.path) if manifest else None,
        "generators": sorted(set(_settings(built_from, "generate_queries", "generator"))
                             | set(_settings(built_from, "import_queries", "name"))),
        "filter": _filters(built_from),
        "source": sorted({f"{inner.settings['reader']} {inner.settings['name']}" for inner in built_from
                          if inner.stage == "ingest_corpus"}),
        "key": version.queries.reference,
    }  # fmt: skip


def _filters(manifests: list[Manifest]) -> dict[str, Any] | None:
    """Return the settings of what changed or dropped queries, by their names in a recipe; None without a filter."""
    by_stage = {manifest.stage: dict(manifest.settings) for manifest in manifests}
    filters: dict[str, Any] = dict(by_stage.get("filter_queries", {}))
    if "detokenise_queries" in by_stage:
        filters["detokenise"] = True
    for name, stage in {"texts": "filter_texts", "duplicates": "drop_duplicates"}.items():
        if stage in by_stage:
            filters[name] = by_stage[stage]
    return filters or None


def _settings(manifests: list[Manifest], stage: str, name: str) -> Iterator[str]:
    """Yield a setting of every artifact of a stage."""
    return (str(manifest.settings[name]) for manifest in manifests if manifest.stage == stage)


def _table(versions: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("version", "built", "state", "rows", "size", "generators", "filter", "source", "key"):
        wraps = heading in ("generators", "filter", "source", "key")
        table.add_column(heading, no_wrap=not wraps, overflow="fold", justify="right" if heading == "rows" else "left")
    for row in versions:
        rows, size = row["rows"], row["bytes"]
        table.add_row(
            row["version"], row["built"], row["state"], "" if rows is None else f"{rows:,}",
            "" if size is None else in_units(size), ", ".join(row["generators"]), _in_words(row["filter"]),
            ", ".join(row["source"]), row["key"],
        )  # fmt: skip
    return table


def _in_words(filters: dict[str, Any] | None) -> str:
    """Return the settings of filters, such as `round_trip 3, relevance percentile 70`."""
    words = []
    for name, value in (filters or {}).items():
        if isinstance(value, dict):
            words.append(f"{name} {' '.join(f'{inner} {_short(limit)}' for inner, limit in value.items())}")
        elif value is not None:
            words.append(name if value is True else f"{name} {value}")
    return ", ".join(words)


def _short(value: Any) -> str:
    """Return a setting in a few characters: a list by its items, a number without needless digits."""
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
