"""`pretrieve queries list`: the versions that a store has."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from flows.queries.versions import all_versions
from flows.terminal import Terminal
from storage.store import Store


def list_versions(folder: Path) -> None:
    """Print every version of every recipe, the oldest first."""
    store = Store.open(folder)
    table = Table("version", "built", "rows", "key", title=str(store.root), title_justify="left")
    for version in all_versions(store):
        manifest = store.manifest(version.queries.stage, version.queries.reference)
        rows = "deleted" if manifest is None or manifest.rows is None else f"{manifest.rows:,}"
        table.add_row(version.name, version.at, rows, version.queries.reference)
    console = Terminal()
    if table.row_count:
        console.print(table)
    else:
        console.print(f"{store.root}: no versions yet; `pretrieve queries build RECIPE` makes one")
