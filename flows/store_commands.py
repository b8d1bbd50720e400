"""`pretrieve show` and `verify`: what the store holds, and whether it is intact."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table
from rich.tree import Tree

from flows.queries.versions import damaged_versions, quarantine_versions
from flows.store_lookup import find, lookup, parameter_inputs
from flows.terminal import out
from storage.artifact import Manifest
from storage.errors import UserError, one_line
from storage.generation_cache.cache import generation_caches, is_damaged
from storage.store.manifest_checks import MANIFEST, find_damage
from storage.store.store import Damage, Store
from tasks.runtime.formatting import in_units

LEFT_ALONE = "the folder is left alone: run its recipe again to rebuild it, or delete it"


def show_artifact(key: str, store_folder: Path) -> None:
    """Print an artifact's manifest and the tree of what it was made of, back to the data set."""
    store = Store.open(store_folder)
    folder, manifest = find(key, store)
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


def lineage_tree(manifest: Manifest, store: Store) -> Tree:
    """Return the tree of what an artifact was built from; the inputs of each artifact are shown once."""
    shown: set[str] = set()

    def grow(tree: Tree, parent: Manifest) -> None:
        for parameter, reference in parameter_inputs(parent):
            branch = tree.add(f"{parameter}: {reference}{' (above)' if reference in shown else ''}")
            if reference not in shown:
                shown.add(reference)
                if (inner := lookup(reference, store)) is not None:
                    grow(branch, inner)

    tree = Tree(f"built from: {manifest.stage}/{manifest.key}")
    grow(tree, manifest)
    return tree


def verify_store(store_folder: Path, aside: bool) -> None:
    """Read every byte of every artifact; exit code 1 and a line on standard error for each problem.

    A run that reuses an artifact does not read the contents of its files; `aside` moves what is damaged to `.damaged`,
    so that the next run rebuilds it.
    """
    store = Store.open(store_folder)
    folders = [folder for folder, _ in store.manifests()]
    damaged = sum(_is_damaged(folder, store, aside) for folder in folders)
    lost = list(store.without_manifest())
    for folder in lost:
        typer.echo(
            one_line(f"pretrieve: damaged: {folder / MANIFEST}: the manifest is missing; {LEFT_ALONE}"), err=True
        )
    caches = generation_caches(store.root)
    files = [(cache, path) for cache in caches for path in (*cache.files(), *cache.invalidation_files())]
    torn = [(ledger, path) for ledger, path in files if is_damaged(path)]
    for ledger, path in torn:
        moved = f"; moved to {ledger.quarantine(path)}" if aside else ""
        typer.echo(
            one_line(f"pretrieve: damaged: {path}: its bytes do not match the hash in its name{moved}"), err=True
        )
    lines = damaged_versions(store)
    if aside and lines:
        quarantine_versions(store)
    else:
        for line in lines:
            typer.echo(one_line(f"pretrieve: {line}"), err=True)
    if damaged or torn:
        what = "run the recipe again to rebuild" if aside else "`pretrieve verify --aside` has the next run rebuild"
        of_ledgers = f" and {len(torn)} of {len(files)} files of ledgers" if files else ""
        typer.echo(f"pretrieve: {what} {damaged} of {len(folders)} artifacts{of_ledgers}", err=True)
    if damaged or torn or lines or lost:
        raise typer.Exit(1)
    of_ledgers = f" and {len(files)} files of ledgers" if files else ""
    out.print(f"{len(folders)} artifacts{of_ledgers} of {store.root} are whole")


def _is_damaged(folder: Path, store: Store, aside: bool) -> bool:
    """Whether an artifact is damaged or may not be read; print a line for each problem, and move it if `aside`."""
    try:
        damage = store.quarantine_if_damaged(folder) if aside else Damage(find_damage(folder), "")
    except UserError as error:
        typer.echo(one_line(f"pretrieve: {error}"), err=True)
        return True
    for problem in damage.problems if damage else []:
        moved = f"; {damage.outcome}" if damage and aside else ""
        typer.echo(one_line(f"pretrieve: damaged: {problem}{moved}"), err=True)
    return bool(damage and damage.problems)
