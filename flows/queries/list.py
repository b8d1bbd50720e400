"""`pretrieve queries list`: the versions that a store has."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.table import Table

from flows.queries.versions import Version, all_versions, damaged_versions
from flows.terminal import Terminal
from storage.errors import one_line
from storage.store.store import Store


def list_versions(folder: Path) -> None:
    """Print every version of every recipe, the oldest first."""
    store = Store.open(folder)
    table = Table("version", "built", "state", "rows", "key", title=str(store.root), title_justify="left")
    for line in damaged_versions(store):
        print(one_line(f"pretrieve: {line}; `pretrieve verify --aside` quarantines it"), file=sys.stderr)
    for version in all_versions(store):
        state, rows = _state(version, store)
        table.add_row(version.name, version.at, state, rows, version.queries.reference)
    console = Terminal()
    if table.row_count:
        console.print(table)
    else:
        console.print(f"{store.root}: no versions yet; `pretrieve queries build RECIPE` builds one")


def _state(version: Version, store: Store) -> tuple[str, str]:
    """Return whether the store has a version's queries: kept, damaged or deleted; and how many."""
    if manifest := store.manifest(version.queries.stage, version.queries.key):
        return "kept", "" if manifest.rows is None else f"{manifest.rows:,}"
    return "damaged" if version.queries.path.exists() else "deleted", ""
