"""`pretrieve show`: an artifact's manifest and its lineage."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from flows.lineage_tree import lineage_tree
from flows.terminal import out, say_json
from storage.store.lookup import find, lineage
from storage.store.manifest_checks import MANIFEST
from storage.store.store import Store
from tasks.runtime.formatting import in_units


def show_artifact(key: str, store_folder: Path, as_json: bool = False) -> None:
    """Print an artifact's manifest and its lineage, back to the data set, as tables or as JSON."""
    store = Store.open(store_folder)
    folder, manifest = find(key, store)
    if as_json:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        say_json({"folder": folder, **content, "lineage": lineage(manifest.reference, store)})
        return
    table = Table(title=f"{manifest.stage} {manifest.key}", title_justify="left", show_header=False)
    values = {
        "folder": str(folder),
        "holds": manifest.schema,
        "rows": manifest.rows,
        "hash": manifest.hash,
        "seed": manifest.seed,
    }
    values |= {f"setting {name}": value for name, value in manifest.settings.items()}
    values |= {name: manifest.built[name] for name in ("at", "seconds", "cpu_seconds", "peak_memory_mib", "device")}
    values["versions"] = ", ".join(f"{name} {version}" for name, version in manifest.built["versions"].items())
    for name, file in {**manifest.files, **manifest.logs}.items():
        values[f"file {name}"] = f"{in_units(file.bytes)}, sha256 {file.sha256[:16]}…"
    for name, value in values.items():
        table.add_row(name, "" if value is None else str(value))
    out.print(table)
    out.print(lineage_tree(manifest, store))
